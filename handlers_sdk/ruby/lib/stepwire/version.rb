# frozen_string_literal: true

module Stepwire
  VERSION = "0.1.0"
end
