#!/usr/bin/perl
# Count the words of a text. No ZeroMQ binding is needed, only a JSON parser, which Perl includes.

use strict;
use warnings;
use JSON::PP;

my $json = JSON::PP->new->utf8->canonical;
my $request = $json->decode(do { local $/; <STDIN> });
my $text = $request->{input}{text};

unless (defined $text && !ref $text) {
    # 65: a retry cannot help. The JSON document gives the reason, which an exit code cannot.
    print $json->encode({ message => "there is no text to count in", code => "no_text" });
    exit 65;
}
my @words = split ' ', $text;
my ($longest) = sort { length $b <=> length $a } @words, "";
print $json->encode({ words => scalar @words, longest => $longest }), "\n";
