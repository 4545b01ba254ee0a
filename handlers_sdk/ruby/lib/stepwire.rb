# frozen_string_literal: true

if (RUBY_VERSION.split(".").map(&:to_i) <=> [3, 1]).negative?
  abort "Stepwire needs Ruby 3.1 or newer, and this is Ruby #{RUBY_VERSION}: install a newer Ruby"
end

# Stepwire for Ruby: `Worker` runs your handlers, `Handler` makes a class one.
module Stepwire
end

require_relative "stepwire/session_parts"
%w[
  identity logs environment curve backtraces context handler outcomes secret_files secret_references secret_values
  sealing sealed_steps edge runners/by_kind wire worker/mailbox
  worker/events worker/reachability worker/search worker/socket_thread worker
].each { |part| require_relative "stepwire/#{part}" }
