#!/usr/bin/perl
# Counts the words of a text. A language without a ZeroMQ binding needs a JSON parser, and Perl brings one.

use strict;
use warnings;
use JSON::PP;

my $json = JSON::PP->new->utf8->canonical;
my $request = $json->decode(do { local $/; <STDIN> });
my $text = $request->{input}{text};

unless (defined $text && !ref $text) {
    # 65: trying again cannot help. The document says it better than an exit code.
    print $json->encode({ message => "there is no text to count in", code => "no_text" });
    exit 65;
}
my @words = split ' ', $text;
my ($longest) = sort { length $b <=> length $a } @words, "";
print $json->encode({ words => scalar @words, longest => $longest }), "\n";
