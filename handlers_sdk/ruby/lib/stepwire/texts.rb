# frozen_string_literal: true

module Stepwire
  # Texts of handlers in a form that every broker accepts.
  module Texts
    MESSAGE_CHARS_MAX = 2000

    module_function

    # The text as valid UTF-8 without U+0000, cut to `chars_max` characters.
    def clean(text, chars_max = MESSAGE_CHARS_MAX)
      text = text.dup.force_encoding(Encoding::UTF_8) if text.encoding == Encoding::BINARY
      text = text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace) unless text.encoding == Encoding::UTF_8
      text = text.scrub("\uFFFD") unless text.valid_encoding?
      text = text[0, chars_max] if text.length > chars_max
      text.include?("\0") ? text.tr("\0", "\uFFFD") : text
    end

    # The same, but a text that was cut ends with `…`.
    def shortened(text, chars_max)
      cleaned = clean(text, chars_max + 1)
      cleaned.length <= chars_max ? cleaned : "#{cleaned[0, chars_max - 1]}…"
    end
  end
end
