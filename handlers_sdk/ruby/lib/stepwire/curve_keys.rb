# frozen_string_literal: true

module Stepwire
  # The CURVE keys of a worker, from STEPWIRE_CURVE_SERVER_KEY, _PUBLIC_KEY, _SECRET_KEY, or from the file that
  # STEPWIRE_CURVE_FILE names. A variable wins over the file.
  module CurveKeys
    NAMES = %w[STEPWIRE_CURVE_SERVER_KEY STEPWIRE_CURVE_PUBLIC_KEY STEPWIRE_CURVE_SECRET_KEY].freeze
    FILE = "STEPWIRE_CURVE_FILE"
    LINE = /\A(?:export\s+)?(STEPWIRE_CURVE_[A-Z_]+)=(?:'([^']*)'|"([^"]*)"|(\S*))\z/

    module_function

    # A Curve, or nil without any key. Raises ConfigurationError.
    def read(environ)
      path = Environment.text(environ, FILE)
      from_file = path ? read_file(path) : {}
      found = NAMES.to_h { |name| [name, Environment.text(environ, name) || from_file[name]] }
      return if found.values.none? && path.nil?

      missing = found.select { |_, key| key.nil? }.keys
      unless missing.empty?
        raise ConfigurationError, "#{missing.join(' and ')} #{missing.size == 1 ? 'is' : 'are'} missing: CURVE needs " \
                                  "#{NAMES[0..1].join(', ')} and #{NAMES[2]}#{path ? ", here or in #{path}" : ''}"
      end
      found.each { |name, key| check(name, key) }
      Curve.new(*found.values)
    end

    def check(name, key)
      return if Topics::CURVE_KEY.match?(key)

      raise ConfigurationError, "#{name} is no key: it needs 40 characters of Z85"
    end

    # The keys of a file with lines like NAME='value'. The file holds a secret, so other users must not read it.
    def read_file(path)
      mode = File.stat(path).mode
      if mode.anybits?(0o077)
        raise ConfigurationError, "#{FILE} is '#{path}': other users can read it (mode #{(mode & 0o777).to_s(8)}). " \
                                  "Run: chmod 600 #{path}"
      end
      File.readlines(path, chomp: true).each_with_object({}) do |line, keys|
        name, *values = LINE.match(line.strip)&.captures
        keys[name] = values.compact.first if name
      end
    rescue SystemCallError => e
      raise ConfigurationError, "#{FILE} is '#{path}': it cannot be read (#{e.message.partition(' @ ').first})"
    end
  end
end
