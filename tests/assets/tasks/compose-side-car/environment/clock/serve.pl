# Says its word to whoever connects.
use strict;
use warnings;
use Socket;
$| = 1;
socket(my $door, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
setsockopt($door, SOL_SOCKET, SO_REUSEADDR, 1);
bind($door, sockaddr_in($ENV{PORT}, INADDR_ANY)) or die "bind: $!";
listen($door, 5) or die "listen: $!";
open(my $mark, '>', '/run/clock.ready') or die "mark: $!";
close($mark);
print "clock listens\n";
while (accept(my $guest, $door)) {
    syswrite($guest, "$ENV{WORD} $ENV{ZONE}\n");
    close($guest);
}
