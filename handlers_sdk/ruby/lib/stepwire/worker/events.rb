# frozen_string_literal: true

module Stepwire
  # The worker's events as log lines: one sentence each.
  class WorkerEvents
    LISTED_MAX = 5 # handlers that a line names

    DROPPED = {
      "lease_over" => "lost broker %<broker>s: it has not answered for a whole lease",
      "unknown_session" => "broker %<broker>s has ended the session: it no longer knows this worker",
      "expired" => "broker %<broker>s has ended the session: it did not receive heartbeats of this worker in time",
      "version" => "broker %<broker>s refuses this worker: they have no protocol version in common; " \
                   "use a broker and an SDK of the same release",
      "unauthorized" => "broker %<broker>s refuses this worker: unauthorized",
      "shutdown" => "broker %<broker>s shuts down",
      "deployment_replaced" => "the session with broker %<broker>s has ended, because its database is another one"
    }.freeze

    attr_reader :public_key

    # How a refused worker names its key, and what to do.
    def self.key_of(public_key)
      key = public_key ? "this worker's public key is #{public_key}" : "this worker has no key"
      "#{key}; on the broker's host see `stepwire keys list` and `stepwire keys allow`"
    end

    # `writer` writes the lines; `link_of` returns the link to a broker, if it is known. `public_key`: the CURVE key
    # that the worker connects with, for its lines about refusals.
    def initialize(writer, link_of, public_key = nil)
      @public_key = public_key
      @writer = writer
      @link_of = link_of
      @epochs = {} # of each broker's last session
    end

    def log(level, event, facts)
      sentence = event == :session_opened ? opened(facts) : send(event, facts)
      refused = [facts[:why], facts[:code]].include?("unauthorized")
      sentence = "#{sentence}; #{self.class.key_of(@public_key)}" if refused
      @writer.write(level, Texts.clean(sentence))
    end

    # Write a line that another part has made.
    def line(level, text)
      @writer.write(level, text)
    end

    # Log the exception that ends the worker.
    def failure(error)
      @writer.write(:error,
                    "the worker ends, because its socket thread has failed\n#{error.full_message(highlight: false)}")
    end

    private

    def opened(facts)
      broker = facts[:broker]
      link = @link_of.call(broker)
      epoch = facts[:session].partition(".")[0]
      before = @epochs[broker]
      @epochs[broker] = epoch
      at = link ? " at #{link.steps}" : ""
      again = case before
              when nil then ""
              when epoch then " again"
              else " again, after its restart"
              end
      "connected to broker #{broker}#{at}#{again}"
    end

    def worker_started(facts)
      names = facts[:handlers]
      more = names.size > LISTED_MAX ? " and #{names.size - LISTED_MAX} more" : ""
      slots = facts[:slots] == 1 ? "1 slot" : "#{facts[:slots]} slots"
      offers = names.first(LISTED_MAX).join(", ") + more
      "started as #{facts[:name]}, process #{facts[:pid]}, #{slots}; offers #{offers}"
    end

    def session_dropped(facts)
      form = DROPPED.fetch(facts[:why], "the session with broker %<broker>s has ended (%<why>s)")
      text = format(form, facts)
      steps = facts[:not_started]
      steps.zero? ? text : "#{text}; #{steps(steps)} that had not started will run elsewhere"
    end

    def worker_drains(facts)
      running = facts[:running]
      "stopping: #{running.zero? ? 'no step is running' : "#{steps(running)} may still finish"}"
    end

    def worker_ended(facts)
      unacknowledged = facts[:unacknowledged]
      return "the worker has ended" if unacknowledged.zero?

      "the worker has ended, and no broker has acknowledged #{steps(unacknowledged)}: they may run again"
    end

    def steps_refused(facts)
      "returned #{steps(facts[:steps])} to broker #{facts[:broker]}: #{facts[:code]}"
    end

    def message_unreadable(facts)
      "a message of a broker cannot be read: #{facts[:code]}: #{facts[:why]}"
    end

    def message_refused(facts)
      "broker #{facts[:broker]} refused a message of this worker (#{facts[:refused]}): " \
        "#{facts[:code]}: #{facts[:message]}"
    end

    def link_rebuilt(facts)
      "connecting to #{facts[:link].steps} again, because it is silent"
    end

    def link_moved(facts)
      "connecting to broker #{facts[:broker]} at its new address #{facts[:link].steps}"
    end

    def link_removed(facts)
      "disconnected from broker #{facts[:broker]}, because no list names it"
    end

    def server_key_changed(facts)
      "connecting to broker #{facts[:broker]} again, because it has a new CURVE key"
    end

    def broker_ignored(facts)
      "broker #{facts[:broker]} is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE"
    end

    def deployment_replaced(facts)
      lost = facts[:results_discarded]
      "broker #{facts[:broker]} has another database (#{facts[:deployment]}): " \
        "#{lost == 1 ? '1 message' : "#{lost} messages"} with results for the earlier one discarded"
    end

    def connect_failed(facts)
      "cannot connect to #{facts[:endpoint]}: #{facts[:error]}"
    end

    def send_failed(facts)
      "a message could not be sent: #{facts[:error]}"
    end

    def no_broker(facts)
      "no broker for #{facts[:seconds]} s: #{facts[:endpoint]}: #{facts[:reason]}"
    end

    def steps(number)
      number == 1 ? "1 step" : "#{number} steps"
    end
  end
end
