# frozen_string_literal: true

require "uri"

module Stepwire
  # The environment variables STEPWIRE_*, and checks of endpoints, because libzmq reports only an error number.
  module Environment
    STEPS_DEFAULT = "ipc://.stepwire/steps.sock"
    RESULTS_DEFAULT = "ipc://.stepwire/results.sock"
    SLOTS_DEFAULT = 10
    SLOTS_MAX = 10_000
    IPC_PATH_BYTES_MAX = 107

    NAME = /\A[A-Za-z0-9._-]{1,48}\z/
    PORT_MAX = 65_535
    ADDRESS = /\A(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?\z/m
    LABEL = /\A[^=,]{1,128}\z/m

    module_function

    # The settings of a worker that the environment can hold. Raises ConfigurationError.
    def read(environ = ENV)
      server_key, public_key, secret_key = Curve.read(environ)
      {
        steps: list(text(environ, "STEPWIRE_STEPS") || STEPS_DEFAULT),
        results: list(text(environ, "STEPWIRE_RESULTS") || RESULTS_DEFAULT),
        name: text(environ, "STEPWIRE_NAME"),
        slots: slots(text(environ, "STEPWIRE_SLOTS") || SLOTS_DEFAULT.to_s),
        labels: labels(text(environ, "STEPWIRE_LABELS") || ""),
        handler_version: text(environ, "STEPWIRE_HANDLER_VERSION") || "",
        curve_server_key: server_key,
        curve_public_key: public_key,
        curve_secret_key: secret_key,
        secrets: text(environ, "STEPWIRE_SECRETS_DIR"),
        seal_keys_file: text(environ, SealKeyFile::FILE)
      }
    end

    # The endpoints in pairs, one pair for each broker. Raises ConfigurationError.
    def links(steps, results)
      if steps.empty? || steps.size != results.size
        raise ConfigurationError,
              "#{steps.size} endpoints for steps and #{results.size} for results: each broker needs one of each, " \
              "in the same order (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)"
      end
      steps.each { |endpoint| check_endpoint("steps", endpoint) }
      results.each { |endpoint| check_endpoint("results", endpoint) }
      steps.zip(results).map { |pair| Link.new(*pair) }
    end

    def check_name(name)
      return name if NAME.match?(name)

      raise ConfigurationError,
            "worker name #{Texts.quoted(name)}: it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)"
    end

    def check_slots(slots)
      return slots if slots.is_a?(Integer) && slots.between?(1, SLOTS_MAX)

      raise ConfigurationError, "slots is #{slots.inspect}: it needs to be 1 to #{SLOTS_MAX} (STEPWIRE_SLOTS)"
    end

    def check_handler_version(version)
      return version if version.length <= Limits::HANDLER_VERSION_MAX

      raise ConfigurationError, "handler_version has #{version.length} characters: it needs at most " \
                                "#{Limits::HANDLER_VERSION_MAX} (STEPWIRE_HANDLER_VERSION)"
    end

    def check_endpoint(kind, endpoint)
      subject = "the #{kind} endpoint #{Texts.quoted(endpoint)}"
      scheme, separator, rest = endpoint.partition("://")
      if separator.empty? || rest.empty?
        raise ConfigurationError, "#{subject} needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/#{kind}.sock"
      end

      case scheme
      when "tcp" then check_address(subject, rest)
      when "ipc" then check_path(subject, rest)
      when "inproc"
        raise ConfigurationError, "#{subject} reaches only a broker in this process: use ipc:// or tcp://"
      else
        raise ConfigurationError, "#{subject}: #{scheme}:// is not supported; use tcp:// or ipc://"
      end
    end

    def check_address(subject, rest)
      host, port = ADDRESS.match(rest)&.captures
      if port.nil? || port.empty? || port == "0"
        raise ConfigurationError, "#{subject} has no port: it needs a form like tcp://127.0.0.1:7411"
      end
      unless port.match?(/\A[0-9]{1,5}\z/) && port.to_i <= PORT_MAX
        raise ConfigurationError, "#{subject}: the port #{Texts.quoted(port)} needs to be 1 to #{PORT_MAX}"
      end
      return unless ["", "*", "[]"].include?(host)

      raise ConfigurationError, "#{subject} names no host: a worker connects, and only a broker may bind to *"
    end

    def check_path(subject, path)
      return if path.bytesize <= IPC_PATH_BYTES_MAX

      raise ConfigurationError, "#{subject}: the path has #{path.bytesize} bytes, and the system allows " \
                                "#{IPC_PATH_BYTES_MAX}: use a relative path"
    end

    def list(text)
      text.split(",").map(&:strip).reject(&:empty?)
    end

    def slots(text)
      unless text.match?(/\A[0-9]{1,6}\z/)
        raise ConfigurationError, "STEPWIRE_SLOTS is #{Texts.quoted(text)}: it needs a whole number, 1 to #{SLOTS_MAX}"
      end

      check_slots(text.to_i)
    end

    def labels(text)
      list(text).to_h do |part|
        key, separator, value = part.partition("=")
        if separator.empty? || !LABEL.match?(key.strip)
          raise ConfigurationError, "STEPWIRE_LABELS has #{Texts.quoted(part)}: it needs a form like region=eu,gpu=true"
        end

        [key.strip, value.strip]
      end
    end

    # An empty variable counts as absent.
    def text(environ, name)
      value = environ[name]
      value.nil? || value.empty? ? nil : value
    end
  end
end
