# frozen_string_literal: true

require "json"
require_relative "session_parts"

module Stepwire
  # The session and the run-slots of this SDK behind the lines of the conformance kit
  # (protocol/conformance/DRIVER.md): reads a fact as JSON, writes the actions and the time of the next wake-up.
  class Driver
    # Answer ops until the input ends.
    def self.serve(input, output)
      driver = new
      input.each_line do |line|
        output.write(JSON.generate(driver.handle(JSON.parse(line))), "\n")
        output.flush
      end
    end

    # Pass one op to the session. Returns the reply.
    def handle(op)
      now_ms = op["now_ms"]
      return start(op) if op["op"] == "start"
      return { error: "the first op must be start" } if @session.nil?

      fault = pass_on(op, now_ms)
      fault ? { error: fault } : reply(now_ms)
    rescue StandardError => e
      { error: "#{e.class}: #{e.message}", backtrace: e.backtrace.first(8) }
    end

    private

    def pass_on(op, now_ms)
      case op["op"]
      when "receive" then receive(op, now_ms)
      when "tick" then nil # `actions` returns all that are due
      when "complete" then finish(op, "completed", output: JSON.generate(op["output"]), metadata: metadata(op))
      when "fail" then finish(op, op.fetch("status", "failed"), error: error(op))
      when "progress"
        void { @session.progressed(item(op), op["done"], op["total"], op["note"], now_ms) if @running.key?(item(op)) }
      when "quiet" then void { @session.quiet(now_ms) }
      when "full" then void { @session.full(op["is_full"], now_ms) }
      when "drain" then void { @session.drain(now_ms) }
      when "expel" then void { @session.expel }
      else "unknown op #{op['op'].inspect}"
      end
    end

    def void
      yield
      nil
    end

    def start(op)
      offers = op["offers"].map do |offer|
        Offer.new(offer["pattern"], offer["concurrency"], offer["timeout_ms"], offer.fetch("shadow_safe", false))
      end
      links = op.fetch("links", [{ "steps" => "ipc://steps", "results" => "ipc://results" }])
      given = { worker: op["worker"], offers: offers, slots: op["slots"], prefetch: op["prefetch"],
                links: links.map { |link| Link.new(link["steps"], link["results"]) } }
      %w[heartbeat_ms labels curve max_message_bytes accept_delay_ms lang sdk host pid pid_started proof
         handler_version].each do |name|
        given[name.to_sym] = op[name] unless op[name].nil?
      end
      config = Config.new(**given)
      @session = Session.new(config, -> { 0.5 })
      @slots = RunSlots.new(config.slots, config.offers)
      @running = {}
      @begun = []
      @session.start(op["now_ms"])
      reply(op["now_ms"])
    end

    def receive(op, now_ms)
      frame = op.key?("frame_base64") ? op["frame_base64"].unpack1("m") : op["frame"]
      frame = frame.b
      begin
        topic, body = Codec.split(frame)
      rescue InvalidMessage
        return
      end
      @session.receive(topic.force_encoding(Encoding::UTF_8), body.force_encoding(Encoding::UTF_8), now_ms)
      nil
    end

    # End a run, and begin the one that gets its slot. A run that has not begun cannot end.
    def finish(op, status, **outcome)
      run = @running.delete(item(op))
      return if run.nil?

      following = @slots.release(run)
      result = Result.new(op["step_id"], op["delivery"], status, *outcome.values_at(:output, :error, :metadata))
      @session.finished(Item.key_of(item(op)), result, op["now_ms"])
      begin_run(following, op["now_ms"]) if following
      nil
    end

    def item(op)
      [op["step_id"], op["delivery"]]
    end

    def metadata(op)
      given = op["metadata"]
      return if given.nil?

      %w[execution_time_ms handler_version retryable stderr].each_with_object({}) do |name, members|
        members[name.to_sym] = given[name] unless given[name].nil?
      end
    end

    def error(op)
      Result.error_detail(message: op["message"] || "", code: op["code"], category: op["category"],
                          retryable: op["retryable"], retry_after_ms: op["retry_after_ms"])
    end

    # Do as a runner does: begin a run that has a slot, or give its step back and begin the next one.
    def begin_run(run, now_ms)
      while run
        if run.begin(now_ms)
          @running[run.item] = run
          @begun << run
          return
        end
        ended = run
        run = @slots.release(ended)
        @session.give_back(ended.key, now_ms)
      end
    end

    def reply(now_ms)
      lines = @begun.map { |run| as_line(run) } # those that a finished run made room for
      @begun.clear
      @session.actions(now_ms).each do |action|
        @slots.add([action]).each { |run| begin_run(run, now_ms) } if action.is_a?(Run)
        lines.concat(@begun.map { |run| as_line(run) })
        @begun.clear
        lines << as_line(action) unless action.is_a?(Run)
      end
      wake_at_ms = @session.wake_at
      { actions: lines.compact, wake_at_ms: wake_at_ms == NEVER ? nil : [now_ms, wake_at_ms].max,
        holding: @session.holding(now_ms) }
    end

    # The action in the form of the kit; nil for actions that the kit does not use.
    def as_line(action)
      case action
      when Send then { action: "send", frame: action.topic + action.body }
      when Run then { action: "run", step_id: action.item[0], delivery: action.item[1] }
      when CancelRun
        { action: "request_stop", step_id: action.run.item[0], delivery: action.run.item[1], reason: action.reason }
      when Quit then { action: "quit" }
      when Connect
        { action: "connect", steps: action.link.steps, results: action.link.results, server_key: action.server_key }
      when Disconnect then { action: "disconnect", steps: action.link.steps, results: action.link.results }
      when Rebuild then { action: "rebuild", steps: action.link.steps, results: action.link.results }
      when ResultTooLarge then { action: "log", level: :error, event: "result_too_large", step_id: action.step.step_id }
      when Log then { action: "log", level: action.level, event: action.event }
      end
    end
  end
end
