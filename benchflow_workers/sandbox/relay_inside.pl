# The end of a relay that runs inside a sandbox without Python: what relay_inside.py does, in the
# Perl that every Debian has, without a module beyond those of perl-base.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket;

my ($WINDOW_BYTES, $CHUNK_BYTES, $CONNECTIONS) = (1 << 18, 1 << 15, 128);
my ($made, $line, %channels) = (0, '');

$SIG{PIPE} = 'IGNORE';
binmode STDIN;
binmode STDOUT;

socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, pack('l', 1)) or die "setsockopt: $!\n";
bind($listener, sockaddr_in($ARGV[0], INADDR_LOOPBACK)) or die "bind: $!\n";
listen($listener, $CONNECTIONS) or die "listen: $!\n";
unblock($listener);
tell_worker('P', (sockaddr_in(getsockname($listener)))[0]);
1 while turn();

# Do what can be done now; false = standard input ended.
sub turn {
    my ($reading, $writing) = ('', '');
    vec($reading, fileno(STDIN), 1) = 1;
    vec($reading, fileno($listener), 1) = 1 if keys(%channels) < $CONNECTIONS;
    for my $one (values %channels) {
        vec($reading, fileno($one->{sock}), 1) = 1 if $one->{credit} > 0 && !$one->{said_all};
        vec($writing, fileno($one->{sock}), 1) = 1 if length $one->{waiting};
    }
    return 1 if select($reading, $writing, undef, undef) < 0;
    for my $one (values %{{%channels}}) {
        my $number = fileno($one->{sock});
        deliver($one) if vec($writing, $number, 1);
        collect($one) if vec($reading, $number, 1) && $channels{$one->{number}};
    }
    admit() if vec($reading, fileno($listener), 1);
    return !vec($reading, fileno(STDIN), 1) || hear();
}

sub admit {
    accept(my $sock, $listener) or return;
    unblock($sock);
    $made++;
    $channels{$made} = {number => $made, sock => $sock, credit => $WINDOW_BYTES, waiting => ''};
    tell_worker('O', $made);
}

# Pass on what a connection sends.
sub collect {
    my ($one) = @_;
    my $most = $one->{credit} < $CHUNK_BYTES ? $one->{credit} : $CHUNK_BYTES;
    my $count = sysread($one->{sock}, my $data, $most);
    return drop_if_broken($one) if !defined $count;
    if ($count) {
        $one->{credit} -= $count;
        tell_worker('D', $one->{number}, encoded($data));
        return;
    }
    $one->{said_all} = 1;
    tell_worker('E', $one->{number});
    close_if_over($one);
}

# Give a connection what waits for it.
sub deliver {
    my ($one) = @_;
    my $count = syswrite($one->{sock}, $one->{waiting});
    return drop_if_broken($one) if !defined $count;
    substr($one->{waiting}, 0, $count, '');
    tell_worker('W', $one->{number}, $count);
    end_if_heard($one);
}

# Read messages; false = there will be no more.
sub hear {
    my $count = sysread(STDIN, my $data, 2 * $CHUNK_BYTES);
    return !!$!{EINTR} if !defined $count;
    $line .= $data;
    while ((my $end = index($line, "\n")) >= 0) {
        my ($kind, $number, $content) = split /[ \n]/, substr($line, 0, $end + 1, '');
        next if $kind !~ s/^~// || !$channels{$number};
        obey($channels{$number}, $kind, $content);
    }
    return $count > 0;
}

sub obey {
    my ($one, $kind, $content) = @_;
    if    ($kind eq 'D') { $one->{waiting} .= decoded($content) }
    elsif ($kind eq 'W') { $one->{credit} += $content }
    elsif ($kind eq 'E') { $one->{heard_all} = 1; end_if_heard($one) }
    elsif ($kind eq 'R') { forget($one) }
}

# Tell a connection that nothing more comes, once it has all that did.
sub end_if_heard {
    my ($one) = @_;
    return if !$one->{heard_all} || length $one->{waiting};
    return drop($one) if !shutdown($one->{sock}, 1);
    close_if_over($one);
}

sub close_if_over {
    my ($one) = @_;
    forget($one) if $one->{said_all} && $one->{heard_all} && !length $one->{waiting};
}

sub drop_if_broken {
    my ($one) = @_;
    drop($one) if !($!{EAGAIN} || $!{EWOULDBLOCK} || $!{EINTR});
}

sub drop {
    my ($one) = @_;
    tell_worker('R', $one->{number});
    forget($one);
}

sub forget {
    my ($one) = @_;
    delete $channels{$one->{number}};
    close $one->{sock};
}

# Write a message, however long its reader takes.
sub tell_worker {
    my ($kind, $number, $content) = @_;
    my $message = "~$kind $number " . (defined $content ? $content : '') . "\n";
    while (length $message) {
        my $count = syswrite(STDOUT, $message);
        exit 0 if !defined $count && !$!{EINTR};
        substr($message, 0, $count, '') if $count;
    }
}

sub unblock {
    my ($sock) = @_;
    fcntl($sock, F_SETFL, fcntl($sock, F_GETFL, 0) | O_NONBLOCK) or die "fcntl: $!\n";
}

# Base64 from uuencode, of which Perl has its own: MIME::Base64 is not in perl-base.
sub encoded {
    my ($data) = @_;
    my $padding = '=' x ((3 - length($data) % 3) % 3);
    my $text = substr(pack('u', $data), 1);
    $text =~ s/\n.?//g;
    $text =~ tr|` -_|AA-Za-z0-9+/|;
    substr($text, -length($padding)) = $padding if $padding;
    return $text;
}

sub decoded {
    my ($text) = @_;
    $text =~ tr|A-Za-z0-9+/||cd;
    $text =~ tr|A-Za-z0-9+/| -_|;
    my $lines = join '', map { chr(32 + int(length($_) * 3 / 4)) . $_ . "\n" } $text =~ /(.{1,60})/gs;
    return unpack('u', $lines);
}
