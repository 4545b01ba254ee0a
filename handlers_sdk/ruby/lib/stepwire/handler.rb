# frozen_string_literal: true

module Stepwire
  # Makes a class a handler:
  #
  #     class ShipOrder
  #       include Stepwire::Handler
  #       handles "ship_order", concurrency: 8
  #
  #       def call(ctx, order_id:, **)
  #         { tracking: "T#{order_id}" }
  #       end
  #     end
  #
  # Each run has its own instance of the class. The keywords of `call` are the members of the step's input.
  module Handler
    def self.included(base)
      base.extend(Declarations)
    end

    # The class methods of a handler.
    module Declarations
      # Offer this class for a handler_class, or for a pattern (`Billing::**`). May be called several times.
      def handles(name, **options)
        stepwire_declarations << [name, options]
      end

      def stepwire_declarations
        @stepwire_declarations ||= []
      end
    end
  end

  # A registered handler: what is called, how its input is read, and its settings.
  class HandlerEntry
    NAME = /\A[A-Za-z0-9_.:*-]{1,128}\z/

    attr_reader :offer, :version, :process

    # `callable` has a method `call`, or `factory` makes an object with one for each run. `process`: run it in a process
    # of its own. `input`: the types of the input's members, see InputTypes.
    def initialize(name, parameters:, callable: nil, factory: nil, concurrency: nil, timeout_ms: nil, process: false,
                   shadow_safe: false, version: nil, input: nil)
      unless name.is_a?(String) && NAME.match?(name)
        shown = name.is_a?(String) ? Texts.quoted(name) : name.inspect
        raise ConfigurationError,
              "handler name #{shown}: it needs 1 to 128 letters, digits, _ . : - and, for patterns, *"
      end
      check_limit(name, "concurrency", concurrency)
      check_limit(name, "timeout_ms", timeout_ms)
      @callable = callable
      @factory = factory
      @offer = Offer.new(name, concurrency, timeout_ms, shadow_safe)
      @process = process
      @version = version
      @arguments = Arguments.new(name, parameters, InputTypes.new(name, input))
    end

    def name
      @offer.pattern
    end

    # The input as the handler takes it. Raises BadInput.
    def read_input(step)
      @arguments.read(step.input.equal?(ABSENT) ? step.task_context : step.input)
    end

    def call(context, input)
      target = @callable || @factory.call
      case @arguments.form
      when :object then target.call(context, input)
      when :keywords then target.call(context, **input)
      else target.call(context)
      end
    end

    private

    def check_limit(name, option, value)
      return if value.nil? || (value.is_a?(Integer) && value >= 1)

      raise ConfigurationError, "handler '#{name}': #{option} is #{value.inspect}: it needs to be at least 1"
    end
  end

  # The input does not fit the handler's parameters.
  class BadInput < Error; end

  # How a handler takes its input: as keywords, as one object, or not at all.
  class Arguments
    attr_reader :form # :keywords, :object or :none

    def initialize(name, parameters, types)
      kinds = parameters.map(&:first)
      positional = kinds.count { |kind| %i[req opt].include?(kind) }
      keywords = parameters.select { |kind, _| %i[key keyreq].include?(kind) }
      check(name, kinds, positional, keywords)
      @required = parameters.filter_map { |kind, key| key if kind == :keyreq }
      @known = keywords.to_h { |_, key| [key.name, key] }
      @takes_rest = kinds.include?(:keyrest)
      @form = if @takes_rest || !@known.empty? then :keywords
              elsif positional == 2 || kinds.include?(:rest) then :object
              else
                :none
              end
      @types = types
    end

    # The input in this form. Raises BadInput.
    def read(input)
      return keywords_of(input) if @form == :keywords

      @types.check(input) if @form == :object && input.is_a?(Hash)
      input
    end

    private

    def check(name, kinds, positional, keywords)
      if positional.zero? && !kinds.include?(:rest)
        raise ConfigurationError, "handler '#{name}' takes no parameter: it needs at least the context, |ctx|"
      end
      return if positional <= 1 || (positional == 2 && keywords.empty? && !kinds.include?(:keyrest))

      raise ConfigurationError, "handler '#{name}': it can have the context and then either keywords " \
                                "(ctx, order_id:, **) or one parameter for the whole input (ctx, input)"
    end

    def keywords_of(input)
      raise BadInput, "it is #{kind_of(input)}, and the keywords need an object" unless input.is_a?(Hash)

      keywords = {}
      input.each do |name, value|
        key = @known[name]
        if key.nil?
          raise BadInput, "it has the member `#{name}`: add ** to ignore further members" unless @takes_rest

          key = name.to_sym
        end
        keywords[key] = value
      end
      missing = @required.find { |key| !keywords.key?(key) }
      raise BadInput, "the member `#{missing}` is missing" if missing

      @types.check(input)
      keywords
    end

    def kind_of(input)
      case input
      when nil then "null"
      when Array then "an array"
      when String then "a string"
      when true, false then "a boolean"
      else "a number"
      end
    end
  end

  # The types of the members of an input, by name: a class, or anything with `===`, or a list of those.
  #
  #     handles "ship_order", input: { order_id: Integer, note: [String, nil], weight: Numeric }
  #
  # A type does not require the member: a keyword without a default does.
  class InputTypes
    def initialize(name, types)
      unless types.nil? || types.is_a?(Hash)
        raise ConfigurationError,
              "handler '#{name}': input is #{types.inspect}: it needs the form { order_id: Integer }"
      end

      @types = (types || {}).map { |key, type| [key.to_s, type.is_a?(Array) ? type : [type]] }
    end

    # Raises BadInput.
    def check(input)
      @types.each do |name, accepted|
        next unless input.key?(name)

        value = input[name]
        next if accepted.any? { |type| type === value } # rubocop:disable Style/CaseEquality -- the point of it

        wanted = accepted.map { |type| type.nil? ? "null" : type.inspect }.join(" or ")
        raise BadInput, "`#{name}` is #{Texts.shortened(value.inspect, 60)}: it needs to be #{wanted}"
      end
    end
  end
end
