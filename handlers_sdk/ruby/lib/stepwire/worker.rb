# frozen_string_literal: true

module Stepwire
  # Offers handlers to the brokers at the given endpoints.
  #
  #     worker = Stepwire::Worker.from_env
  #     worker.add(ShipOrder)
  #     worker.handler("greet") { |ctx, name:, **| { text: "Hello, #{name}" } }
  #     worker.run
  #
  # `slots` is the number of steps that run at a time. Further steps wait in the worker: as many as it is observed to
  # finish in 40 ms, at least `prefetch`. With `prefetch: 0`, no step waits here. For several brokers, `steps` and
  # `results` are lists, with one endpoint each for each broker. The three CURVE keys are all given, or none; `name` is
  # then the name of the key. `secrets` resolves references like `{"$secret": "stripe/live"}` in a step's configuration
  # and input: a directory of files, or an object that is called with the name and returns the value. `seal_keys_file`
  # has the keys of sealed payloads. The worker gets its id and connects in `run` or `start`, not before; after a fork,
  # start a new worker.
  class Worker
    DRAIN_MS = 25_000
    ACCEPT_DELAY_MS = 5

    # A worker configured by the environment variables STEPWIRE_*. `changes` override the environment.
    def self.from_env(**changes)
      new(**Environment.read, **changes)
    end

    def initialize(steps: Environment::STEPS_DEFAULT, results: Environment::RESULTS_DEFAULT, name: nil,
                   slots: Environment::SLOTS_DEFAULT, prefetch: nil, labels: {}, handler_version: "",
                   curve_server_key: nil, curve_public_key: nil, curve_secret_key: nil, secrets: nil,
                   seal_keys_file: nil,
                   heartbeat_ms: Limits::HEARTBEAT_MS)
      unless prefetch.nil? || (prefetch.is_a?(Integer) && prefetch >= 0)
        raise ConfigurationError, "prefetch is #{prefetch.inspect}: it needs to be 0 or more"
      end

      unless heartbeat_ms.is_a?(Integer) && heartbeat_ms.between?(50, Limits::LEASE_MS / 2)
        raise ConfigurationError,
              "heartbeat_ms is #{heartbeat_ms.inspect}: it needs to be 50 to #{Limits::LEASE_MS / 2}"
      end

      @links = Environment.links(Array(steps), Array(results))
      @name = Environment.check_name(name || default_name)
      @slots = Environment.check_slots(slots)
      @prefetch = prefetch
      @labels = labels.to_h { |key, value| [key.to_s, value.to_s] }
      @handler_version = Environment.check_handler_version(handler_version)
      @curve = Curve.keys(curve_server_key, curve_public_key, curve_secret_key)
      @edge = Edge.new(check_secrets(secrets), seal_keys_file)
      @heartbeat_ms = heartbeat_ms
      @handlers = []
      @thread = nil
      @pid = nil
    end

    # Register a block for a handler_class, or for a pattern (`Billing::**`). Its first parameter is the context, its
    # keywords are the members of the input. End it early with `next`, not with `return`. Options: `concurrency`,
    # `timeout_ms`, `process`, `shadow_safe`, `version`, `input` (see InputTypes).
    def handler(name, **options, &block)
      raise ConfigurationError, "handler '#{name}' has no block: write worker.handler(\"#{name}\") { |ctx, **| … }" if
        block.nil?

      register(name, options, callable: block, parameters: block.parameters)
    end

    # Register classes that include Stepwire::Handler. Each run gets a new instance.
    def add(*classes)
      classes.each do |handler|
        declarations = handler.respond_to?(:stepwire_declarations) ? handler.stepwire_declarations : []
        if declarations.empty?
          raise ConfigurationError,
                "#{handler} is no handler: write `include Stepwire::Handler` and `handles \"a_name\"`"
        end
        unless handler.method_defined?(:call)
          raise ConfigurationError, "#{handler} has no method `call`: write `def call(ctx, order_id:, **)`"
        end

        parameters = handler.instance_method(:call).parameters
        declarations.each do |name, options|
          register(name, options, factory: handler.method(:new), parameters: parameters)
        end
      end
      self
    end

    # The registered handlers.
    def handlers
      @handlers.dup
    end

    # The worker id of this process; nil before the start, and in a forked child.
    def id
      @thread && @pid == Process.pid ? @thread.worker_id : nil
    end

    # -- life ---------------------------------------------------------------------------------------------------------

    # Run until a signal ends the worker. TERM and INT drain; a second INT exits at once. After TSTP the worker accepts
    # no new steps. Call it in the main thread.
    def run
      interrupts = 0
      before = {
        "TERM" => -> { drain },
        "INT" => lambda do
          interrupts += 1
          interrupts > 1 ? exit!(130) : drain
        end,
        "TSTP" => -> { quiet }
      }.to_h { |signal, action| [signal, trap(signal) { action.call }] }
      start
      wait
    ensure
      before&.each { |signal, action| trap(signal, action || "DEFAULT") }
    end

    # Connect, and run in the background.
    def start
      raise ConfigurationError, "the worker has no handlers: register some with worker.add or worker.handler" if
        @handlers.empty?
      raise ConfigurationError, "the worker has started already" if @thread && @pid == Process.pid && !@thread.ended?

      Stepwire.logger # made before threads use it
      @pid = Process.pid
      @thread = SocketThread.new(config, handlers, @curve, @edge)
      @thread.start
    end

    # Accept no new steps, finish the steps that are held, and stay connected.
    def quiet
      @thread&.quiet
    end

    # Begin to stop: return steps that have not started, let runs finish for at most `drain_ms`, then end.
    def drain(drain_ms = DRAIN_MS)
      @thread&.drain(drain_ms)
    end

    # Drain, and wait for the end.
    def stop(drain_ms = DRAIN_MS)
      drain(drain_ms)
      wait
    end

    # Wait for the end of the worker, at most `timeout_s`. True if it has ended. Raises if a fault of the SDK ended it.
    def wait(timeout_s = nil)
      @thread.nil? || @thread.wait(timeout_s)
    end

    private

    def check_secrets(secrets)
      return secrets if secrets.nil? || secrets.is_a?(String) || secrets.respond_to?(:call)

      raise ConfigurationError, "secrets is of the type #{secrets.class}: it needs a directory, or a function from a " \
                                "name to the value (STEPWIRE_SECRETS_DIR)"
    end

    def register(name, options, **target)
      if @thread
        raise ConfigurationError,
              "handler '#{name}' is registered too late: register handlers before the worker starts"
      end
      entry = begin
        HandlerEntry.new(name, **target, **options)
      rescue ArgumentError => e
        raise ConfigurationError, "handler '#{name}': #{e.message}"
      end
      raise ConfigurationError, "handler '#{name}' is registered twice in this worker" if
        @handlers.any? { |known| known.name == name }
      raise ConfigurationError, "more than #{Limits::HANDLERS_MAX} handlers: register a pattern instead" if
        @handlers.size >= Limits::HANDLERS_MAX

      @handlers << entry
    end

    def config
      process = Identity.this_process
      outlived = @handlers.any?(&:process) && !ChildProcesses.die_with_worker?
      Config.new(
        worker: Identity.new_worker_id(@name), offers: @handlers.map(&:offer), slots: @slots, prefetch: @prefetch,
        labels: @labels, links: @links, curve: !@curve.nil?, heartbeat_ms: @heartbeat_ms,
        accept_delay_ms: ACCEPT_DELAY_MS, sdk: "stepwire-ruby/#{VERSION}", host: process.host, pid: process.pid,
        pid_started: process.pid_started, proof: process.is_provable && !outlived, handler_version: @handler_version
      )
    end

    # The program's name, so that logs and lists of workers show which program runs.
    def default_name
      name = File.basename($PROGRAM_NAME, ".*").gsub(/[^A-Za-z0-9._-]/, "-")[0, 48].gsub(/\A-+|-+\z/, "")
      name.empty? ? "worker" : name
    end
  end
end
