# frozen_string_literal: true

require_relative "lib/stepwire/version"

Gem::Specification.new do |spec|
  spec.name = "stepwire"
  spec.version = Stepwire::VERSION
  spec.authors = ["The Stepwire authors"]
  spec.summary = "Handlers for Stepwire in Ruby: a worker that loses no step"
  spec.description = "Runs the steps of Stepwire workflows in Ruby: sessions, leases, acknowledged results and " \
                     "at_most_once steps, over ZeroMQ."
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "exe/*", "README.md", "CHANGELOG.md", "LICENSE", "capabilities.yaml"]
  spec.bindir = "exe"
  spec.executables = %w[stepwire-conform stepwire-driver]
  spec.add_runtime_dependency "ffi-rzmq", "~> 2.0", ">= 2.0.7"
  spec.metadata["rubygems_mfa_required"] = "true"
end
