# frozen_string_literal: true

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))
require "json"
require "stepwire"
require "stepwire/testing"
require "stringio"
require "tmpdir"
require "minitest/autorun"
require_relative "support/played_broker"

# What several tests need.
module Helper
  VECTORS = File.expand_path("../../../protocol/vectors", __dir__)
  WORKER = "shop-1:0123456789abcdef"

  module_function

  def vectors(name)
    JSON.parse(File.read(File.join(VECTORS, name)))
  end

  # Wait until the block returns a true value, and return that value.
  def eventually(what, within_s: 10)
    until_s = Process.clock_gettime(Process::CLOCK_MONOTONIC) + within_s
    loop do
      value = yield
      return value if value

      if Process.clock_gettime(Process::CLOCK_MONOTONIC) > until_s
        raise Minitest::Assertion,
              "not in #{within_s} s: #{what}"
      end

      sleep(0.005)
    end
  end

  # The log lines of the block.
  def logged
    before = Stepwire.logger
    lines = StringIO.new
    Stepwire.logger = Logger.new(lines, formatter: Stepwire::Logs.method(:line))
    yield
    lines.string
  ensure
    Stepwire.logger = before
  end
end

Stepwire.logger = Logger.new(IO::NULL)
