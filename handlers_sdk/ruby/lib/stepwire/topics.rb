# frozen_string_literal: true

module Stepwire
  # Topics. A frame is a topic, one space, JSON. The constants and subscriptions of topics include that space.
  # Without the space, a subscription of `results@b1` would also receive the messages to `results@b10`.
  module Topics
    BROKERS = "brokers "
    RESULTS = "results "
    WORKERS = "workers "

    WORKER = /\A[A-Za-z0-9._-]{1,48}:[0-9a-f]{16}\z/
    BROKER = /\A[a-z0-9-]{1,32}\z/
    CURVE_KEY = %r{\A[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}\z} # Z85
    SESSION = /\A[0-9]{1,16}\.[0-9]{1,16}\z/

    module_function

    # The topic of this worker. No other worker subscribes to it.
    def to_worker(worker)
      "@#{worker} "
    end

    # The topic of this broker. No other broker subscribes to it.
    def results_to(broker)
      "results@#{broker} "
    end

    # [epoch, k] of a session id. The codec has checked its form.
    def session_parts(session)
      epoch, k = session.split(".", 2)
      [epoch.to_i, k.to_i]
    end
  end
end
