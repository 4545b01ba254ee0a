# frozen_string_literal: true

module Stepwire
  # Backtraces of handlers: they end at the handler's own code, and leave out the frames of the SDK.
  module Backtraces
    BACKTRACE_BYTES_MAX = 8192
    LINE_CHARS_MAX = 1000
    CAUSES_MAX = 5

    SDK = "#{__dir__}/".freeze

    module_function

    # The message of an exception; empty if the exception's own method raises.
    def text_of(error)
      error.message.to_s
    rescue StandardError
      ""
    end

    def name_of(error)
      error.class.name || "an anonymous #{error.class.superclass}"
    end

    # The type and the text of an exception: `KeyError: key not found: "nope"`.
    def summary(error)
      name = name_of(error)
      text = text_of(error)
      text.empty? || text == name ? name : "#{name}: #{text}"
    end

    # The lines of the backtrace, the innermost first, and those of its causes. At most 8 KiB.
    def lines(error)
      lines = []
      CAUSES_MAX.times do
        break if error.nil?

        lines << Texts.clean("caused by #{summary(error)}", LINE_CHARS_MAX) unless lines.empty?
        lines.concat(own_frames(error))
        error = error.cause
      end
      first(lines)
    end

    def own_frames(error)
      (error.backtrace || []).filter_map do |frame|
        Texts.clean(frame, LINE_CHARS_MAX) unless frame.start_with?(SDK)
      end
    end

    # The first lines that fit into the limit, above a line with the number of the others.
    def first(lines)
      left = BACKTRACE_BYTES_MAX - 64 # for that line
      kept = lines.take_while { |line| (left -= line.bytesize + 1) >= 0 }
      kept.size == lines.size ? lines : [*kept, "… (#{lines.size - kept.size} more lines)"]
    end
  end
end
