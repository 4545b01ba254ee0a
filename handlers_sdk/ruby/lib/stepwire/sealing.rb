# frozen_string_literal: true

require "json"
require "openssl"

module Stepwire
  # The payload cannot be unsealed: its key is missing, or it was changed or belongs to another task or step.
  class NotUnsealed < Error; end

  # The task to which a sealed payload belongs: its namespace, workflow and idempotency key.
  SealedTask = Struct.new(:namespace, :workflow, :key)

  # Keys by their `kid`. The first seals, all of them unseal: AES-256-GCM with a nonce that follows from the content, so
  # a repeated submission has the same bytes and its idempotency key holds. protocol/SPEC.md §21 has the format, and
  # protocol/vectors/sealed.json examples.
  class SealKeys
    MEMBER = "$sealed"
    VERSION = "v1"
    NONCE_BYTES = 12
    TAG_BYTES = 16
    CIPHER = "aes-256-gcm"
    ENCRYPTION = "stepwire sealed v1 encryption"
    NONCE = "stepwire sealed v1 nonce"
    KID_SHOWN_MAX = 64

    attr_reader :kid

    # The keys of a file with lines `KID=BASE64`. Raises ConfigurationError.
    def self.of_file(path)
      new(SealKeyFile.read(path))
    end

    # True if the value is meant as a sealed payload, whether its form is right or not.
    def self.sealed?(value)
      value.is_a?(Hash) && value.key?(MEMBER)
    end

    # A key for one purpose: HKDF-SHA-256 (RFC 5869) without salt, 32 bytes.
    def self.derived(key, purpose)
      pseudorandom = OpenSSL::HMAC.digest("SHA256", "\0" * 32, key)
      OpenSSL::HMAC.digest("SHA256", pseudorandom, "#{purpose}\x01")
    end

    # The bytes to which a payload is bound. Each part follows its length, so no two lists give the same bytes.
    def self.associated_data(kind, kid, task, step)
      ["stepwire sealed v1", kind, kid, task.namespace, task.workflow, task.key, *step]
        .map { |part| "#{part.bytesize}:#{part}" }.join.b
    end

    def initialize(keys)
      @pairs = keys.transform_values { |key| [SealKeys.derived(key, ENCRYPTION), SealKeys.derived(key, NONCE)] }
      @kid = keys.keys.first
    end

    # The sealed payload as JSON. Its `clear` is the member `clear` of the plaintext, if that is an object.
    def seal(kind, task, step, plaintext)
      key, nonce_key = @pairs.fetch(@kid)
      aad = SealKeys.associated_data(kind, @kid, task, step)
      nonce = OpenSSL::HMAC.digest("SHA256", nonce_key, aad + plaintext.b)[0, NONCE_BYTES]
      cipher = cipher_with(:encrypt, key, nonce, aad)
      data = cipher.update(plaintext.b) + cipher.final + cipher.auth_tag(TAG_BYTES)
      payload = { MEMBER => VERSION, "kid" => @kid }
      payload["task"] = task.to_h if kind == "context"
      JSON.generate(payload.merge("nonce" => [nonce].pack("m0"), "data" => [data].pack("m0"),
                                  "clear" => kind == "error" ? {} : clear_part(plaintext)))
    end

    # The plaintext of a decoded payload. Raises NotUnsealed, whose text holds nothing of the payload.
    def unseal(kind, task, step, payload)
      kid = payload["kid"]
      if payload[MEMBER] != VERSION
        raise NotUnsealed, "the #{kind} is sealed in a version that this program does not know"
      end

      key, = @pairs[kid]
      if key.nil?
        raise NotUnsealed, "the #{kind} is sealed with the key #{Texts.quoted(kid.to_s[0, KID_SHOWN_MAX])}, which is " \
                           "not in the file of keys"
      end
      opened(key, payload, SealKeys.associated_data(kind, kid, task, step))
    rescue OpenSSL::OpenSSLError, ArgumentError, NoMethodError, TypeError # of Base64 or of the members, or a wrong tag
      where = step.nil? ? "another task" : "another task or step"
      raise NotUnsealed, "the #{kind} was changed after it was sealed, or it belongs to #{where}", cause: nil
    end

    private

    def opened(key, payload, aad)
      nonce, data = payload.values_at("nonce", "data").map { |text| text.unpack1("m0") }
      raise ArgumentError, "no tag" if data.bytesize < TAG_BYTES || nonce.bytesize != NONCE_BYTES

      cipher = cipher_with(:decrypt, key, nonce, aad)
      cipher.auth_tag = data[-TAG_BYTES..]
      encrypted = data[0...-TAG_BYTES]
      plaintext = (encrypted.empty? ? "" : cipher.update(encrypted)) + cipher.final
      plaintext.force_encoding(Encoding::UTF_8)
      raise ArgumentError, "no text" unless plaintext.valid_encoding?

      plaintext
    end

    def cipher_with(direction, key, nonce, aad)
      cipher = OpenSSL::Cipher.new(CIPHER).public_send(direction)
      cipher.key = key
      cipher.iv = nonce
      cipher.auth_data = aad
      cipher
    end

    def clear_part(plaintext)
      value = plaintext.include?('"clear"') || plaintext.include?("\\u00") ? JSON.parse(plaintext) : nil
      clear = value["clear"] if value.is_a?(Hash)
      clear.is_a?(Hash) ? clear : {}
    end
  end

  # Reads the file that STEPWIRE_SEAL_KEYS_FILE names. No error names a key.
  module SealKeyFile
    FILE = "STEPWIRE_SEAL_KEYS_FILE"
    BYTES_MAX = 64 * 1024
    KEYS_MAX = 100
    LINE = %r{\A([A-Za-z0-9._-]{1,64})=([A-Za-z0-9+/]{43}=)\z}

    module_function

    # The keys of a file, by `kid`, in its order. Raises ConfigurationError.
    def read(path)
      subject = "#{FILE} is #{Texts.quoted(path)}"
      text = text_of(subject, path)
      keys = {}
      text.split(/\r\n|\n|\r/).each.with_index(1) do |line, number|
        next if line.strip.empty? || line.start_with?("#")

        add(keys, LINE.match(line.strip), number, path)
      end
      return keys if keys.size.between?(1, KEYS_MAX)

      raise ConfigurationError, "#{subject}: it needs 1 to #{KEYS_MAX} keys, and has #{keys.size}"
    end

    def add(keys, found, number, path)
      if found.nil?
        raise ConfigurationError, "#{FILE}: line #{number} of #{Texts.quoted(path)} is not KID=KEY, with a key of 32 " \
                                  "random bytes in Base64, as made by: openssl rand -base64 32"
      end
      if keys.key?(found[1])
        raise ConfigurationError, "#{FILE}: #{Texts.quoted(path)} has two keys with the name #{Texts.quoted(found[1])}"
      end

      keys[found[1]] = found[2].unpack1("m")
    end

    def text_of(subject, path)
      content = File.open(path, File::RDONLY | File::NONBLOCK) do |file|
        check(subject, path, file.stat)
        file.read(BYTES_MAX + 1).to_s
      end
      text = content.force_encoding(Encoding::UTF_8)
      raise ConfigurationError, "#{subject}: it cannot be read: it is no text" unless text.valid_encoding?

      text
    rescue SystemCallError => e
      raise ConfigurationError, "#{subject}: it cannot be read: #{SecretFiles.reason(e)}", cause: nil
    end

    def check(subject, path, stat)
      raise Errno::EISDIR if stat.directory?
      raise ConfigurationError, "#{subject}: it is no regular file" unless stat.file?
      raise ConfigurationError, "#{subject}: it belongs to another user" unless SecretFiles.own?(stat)

      if stat.mode.anybits?(0o077)
        raise ConfigurationError, "#{subject}: its group or others may use it: chmod 600 #{path}"
      end
      raise ConfigurationError, "#{subject}: it has more than #{BYTES_MAX} bytes" if stat.size > BYTES_MAX
    end
  end
end
