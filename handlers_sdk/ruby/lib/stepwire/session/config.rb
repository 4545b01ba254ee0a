# frozen_string_literal: true

module Stepwire
  # A handler of this worker, by name or pattern. `concurrency`: maximum number of runs at a time; nil: the number of
  # slots. `timeout_ms` shortens the timeout of the step.
  Offer = Struct.new(:pattern, :concurrency, :timeout_ms, :shadow_safe) do
    def initialize(pattern, concurrency = nil, timeout_ms = nil, shadow_safe = false)
      super
    end
  end

  # The configuration of a session: the worker's identity and capacity, the content of its `hello`.
  class Config
    MEMBERS = {
      worker: nil, offers: [].freeze, slots: nil,
      prefetch: nil, # the least room for steps that wait; nil: only what the observed pace says
      labels: {}.freeze, links: [].freeze,
      curve: false, # the sockets have CURVE keys
      heartbeat_ms: Limits::HEARTBEAT_MS,
      accept_delay_ms: 0, # an accept waits this long for results that make it superfluous
      max_message_bytes: Limits::MESSAGE_BYTES_MAX, lang: "ruby", sdk: "",
      handler_version: "", # the release of the handlers
      host: "", pid: 0, pid_started: 0, proof: false
    }.freeze
    attr_reader(*MEMBERS.keys)

    def initialize(**members)
      unknown = members.keys - MEMBERS.keys
      raise ArgumentError, "unknown members #{unknown.join(', ')}" unless unknown.empty?

      MEMBERS.each { |name, default| instance_variable_set(:"@#{name}", members.fetch(name, default)) }
      freeze
    end

    # The number of steps that may wait for a slot before any has ended: the member `prefetch` of hello.
    def queue_max
      prefetch.nil? ? [slots, Limits::PREFETCH_MIN].max : prefetch
    end
  end

  # The worker's offers by number, and the offer for each handler_class.
  class Offers
    CLASSES_MAX = 10_000 # handler classes whose offer is remembered

    attr_reader :by_number

    def initialize(offers)
      @by_number = offers
      @number_of = {}
    end

    # The number of the offer for this handler_class; nil if no offer matches.
    def find(handler_class)
      @number_of.fetch(handler_class) do
        @number_of.clear if @number_of.size >= CLASSES_MAX
        @number_of[handler_class] = Offers.find(@by_number, handler_class)
      end
    end

    # The number of the offer with this exact name, otherwise of the first pattern that matches.
    def self.find(offers, handler_class)
      first_match = nil
      offers.each_with_index do |offer, number|
        return number if offer.pattern == handler_class

        next if first_match || !Patterns.pattern?(offer.pattern)

        first_match = number if Patterns.match?(offer.pattern, handler_class)
      end
      first_match
    end
  end
end
