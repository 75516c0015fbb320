use strict;
use warnings;
use IO::Socket::INET;

my ($port, $folder) = @ARGV;
sleep 1;    # so that an agent that does not wait for it finds nobody
my $server = IO::Socket::INET->new(LocalPort => $port, Listen => 5, ReuseAddr => 1) or die "no port: $!";
$| = 1;
print "notes of $ENV{NOTES_TASK} listen\n";
while (my $client = $server->accept) {
    my $asked = <$client> // "";
    my ($path) = $asked =~ m{^GET (\S+)};
    while (defined(my $line = <$client>)) { last if $line =~ /^\r?\n$/ }
    my $body = "ok\n";
    if (($path // "") eq "/note") {
        open(my $note, "<", "$folder/note") or die;
        $body = "$ENV{NOTES_TASK}: " . <$note>;
        open(my $state, ">>", "$folder/asked.db") or die;
        print $state "asked\n";
        close $state;
    }
    print $client "HTTP/1.0 200 OK\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
    close $client;
}
