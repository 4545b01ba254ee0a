# frozen_string_literal: true

module Stepwire
  # The secret has no value that may be used. The message never holds the value. `category` is `unavailable` if the
  # service that holds the secrets has failed.
  class SecretUnavailable < Error
    attr_reader :category

    def initialize(message, category: nil)
      super(message)
      @category = category
    end
  end

  # Reads the value of a secret from a file in STEPWIRE_SECRETS_DIR: `stripe/live` is the file `stripe/live` in there.
  # Symbolic links may lead to files inside the directory, as Kubernetes makes them, and nowhere else.
  module SecretFiles
    VALUE_BYTES_MAX = 64 * 1024
    ROOT = 0
    FLAGS = File::RDONLY | File::NOFOLLOW | File::NONBLOCK

    module_function

    # The value of the secret with this name, which has the form of a reference. Raises SecretUnavailable. One line end
    # at the end of the file is not part of the value.
    def read(directory, name)
      secret = "secret #{Texts.quoted(name)}"
      root = checked_directory(directory)
      path = File.realpath(File.join(root, name))
      unless path.start_with?("#{root.chomp('/')}/")
        raise SecretUnavailable, "#{secret}: its file is a link that leads out of #{directory}"
      end

      File.open(path, FLAGS) do |file|
        check_file("#{secret}: its file in #{directory}", file.stat)
        value_of(name, file.binmode.read(VALUE_BYTES_MAX + 1).to_s)
      end
    rescue Errno::ENOENT
      raise SecretUnavailable, "#{secret}: there is no such file in #{directory}", cause: nil
    rescue SystemCallError => e
      raise SecretUnavailable, "#{secret}: its file in #{directory} cannot be read: #{reason(e)}", cause: nil
    end

    # The value that the content of a file means. Raises SecretUnavailable.
    def value_of(name, content)
      secret = "secret #{Texts.quoted(name)}"
      if content.bytesize > VALUE_BYTES_MAX
        raise SecretUnavailable, "#{secret}: its file has more than #{VALUE_BYTES_MAX} bytes"
      end

      text = content.dup.force_encoding(Encoding::UTF_8)
      unless text.valid_encoding?
        raise SecretUnavailable, "#{secret}: its file is no UTF-8 text; store binary data as Base64"
      end

      text = text.sub(/\r?\n\z/, "")
      raise SecretUnavailable, "#{secret}: its file is empty" if text.empty?

      text
    end

    # True if this user or root owns the file.
    def own?(stat)
      [Process.euid, ROOT].include?(stat.uid)
    end

    # The system's text of an error, without the path.
    def reason(error)
      error.class.new.message
    end

    # The directory without links, checked.
    def checked_directory(directory)
      subject = "the directory of secrets #{Texts.quoted(directory)}"
      begin
        root = File.realpath(directory)
        stat = File.stat(root)
      rescue SystemCallError => e
        raise SecretUnavailable, "#{subject} cannot be read: #{reason(e)}", cause: nil
      end
      raise SecretUnavailable, "#{subject} is no directory" unless stat.directory?
      raise SecretUnavailable, "#{subject} belongs to another user: chown it" unless own?(stat)

      is_protected = stat.mode.nobits?(0o022) || stat.sticky? # sticky: only owners replace files
      raise SecretUnavailable, "other users may write #{subject}: chmod 700 #{directory}" unless is_protected

      root
    end

    def check_file(where, stat)
      raise SecretUnavailable, "#{where} is no regular file" unless stat.file?
      raise SecretUnavailable, "#{where} belongs to another user: chown it" unless own?(stat)
      return if stat.mode.nobits?(0o027)

      mode = format("%04o", stat.mode & 0o7777)
      raise SecretUnavailable, "#{where} has the mode #{mode}, so other users may use it: chmod 600, or 400"
    end
  end
end
