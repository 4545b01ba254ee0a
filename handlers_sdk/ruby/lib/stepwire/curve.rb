# frozen_string_literal: true

module Stepwire
  # The CURVE keys of a worker: from arguments, environment variables or a file, all three or none. No error names a
  # key: it could be the secret one.
  module Curve
    NAMES = %w[STEPWIRE_CURVE_SERVER_KEY STEPWIRE_CURVE_PUBLIC_KEY STEPWIRE_CURVE_SECRET_KEY].freeze
    FILE = "STEPWIRE_CURVE_FILE"
    FILE_BYTES_MAX = 64 * 1024
    LINE = /\A(?:export\s+)?(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|(\S*))\z/

    # The brokers' public key, and the key pair of this worker. Z85, 40 characters each.
    Keys = Struct.new(:server, :public, :secret)

    module_function

    # The keys from the environment, and from the file that STEPWIRE_CURVE_FILE names. A variable wins over the file.
    # Raises ConfigurationError.
    def read(environ)
      path = Environment.text(environ, FILE)
      in_file = path ? read_file(path) : {}
      NAMES.map { |name| Environment.text(environ, name) || in_file[name] }
    end

    # The keys, checked; nil if there are none. Raises ConfigurationError, also if only some of them are there.
    def keys(*given)
      given = given.map { |key| key.nil? || key.empty? ? nil : key }
      return if given.none?

      NAMES.zip(given) { |name, key| check(name, key) }
      checked = Keys.new(*given)
      check_pair(checked)
      checked
    end

    def check(name, key)
      if key.nil?
        raise ConfigurationError, "#{name} is missing: CURVE needs #{NAMES[0]}, #{NAMES[1]} and #{NAMES[2]}, " \
                                  "as variables or in the file that #{FILE} names"
      end
      return if Topics::CURVE_KEY.match?(key)

      raise ConfigurationError, "#{name} is no key: it needs 40 characters of Z85, and has #{key.length} characters"
    end

    def check_pair(keys)
      if Wire::LibZmq.has("curve").zero?
        raise ConfigurationError, "#{NAMES[2]} is set, but this libzmq has no CURVE: install libzmq5 of your system"
      end

      public_key = FFI::MemoryPointer.new(41)
      return if Wire::LibZmq.curve_public(public_key, keys.secret).zero? && public_key.read_string == keys.public

      raise ConfigurationError, "#{NAMES[1]} does not belong to #{NAMES[2]}: take both from one key pair"
    end

    # The lines NAME='value' of a key file. Other lines are ignored.
    def read_file(path)
      text = File.open(path, "r:UTF-8") do |file|
        mode = file.stat
        if mode.file? && mode.mode.anybits?(0o077)
          raise ConfigurationError, "#{FILE} is '#{path}': its group or others may use this file, and it holds a " \
                                    "secret key: chmod 600 #{path}"
        end
        file.read(FILE_BYTES_MAX).to_s
      end
      raise ConfigurationError, "#{FILE} is '#{path}': it cannot be read: it is no text" unless text.valid_encoding?

      text.each_line.filter_map { |line| LINE.match(line.strip)&.captures }
          .to_h { |name, *values| [name, values.compact.first] }
    rescue SystemCallError => e
      reason = e.message.partition(" @ ").first
      raise ConfigurationError, "#{FILE} is '#{path}': it cannot be read: #{reason}", cause: nil
    end
  end
end
