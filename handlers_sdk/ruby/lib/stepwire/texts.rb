# frozen_string_literal: true

module Stepwire
  # Texts of handlers in a form that every broker accepts, without the values of secrets.
  module Texts
    MESSAGE_CHARS_MAX = 2000
    ESCAPES = { "\\" => "\\\\", "\n" => "\\n", "\r" => "\\r", "\t" => "\\t" }.freeze

    module_function

    # The text as valid UTF-8 without values of secrets and U+0000, cut to `chars_max` characters.
    def clean(text, chars_max = MESSAGE_CHARS_MAX)
      text = Redaction.redact(utf8(text)) # before the cut, which could leave a part of a value
      text = text[0, chars_max] if text.length > chars_max
      text.include?("\0") ? text.tr("\0", "\uFFFD") : text
    end

    # The text as valid UTF-8.
    def utf8(text)
      text = text.dup.force_encoding(Encoding::UTF_8) if text.encoding == Encoding::BINARY
      text = text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace) unless text.encoding == Encoding::UTF_8
      text.valid_encoding? ? text : text.scrub("\uFFFD")
    end

    # The text in quotation marks, as error sentences of all SDKs have it. Control characters are escaped.
    def quoted(text)
      mark = text.include?("'") && !text.include?('"') ? '"' : "'"
      mark + utf8(text).gsub(/[\\'[:cntrl:]]/) { |character| escaped(character, mark) } + mark
    end

    def escaped(character, mark)
      return mark == "'" ? "\\'" : character if character == "'"

      ESCAPES.fetch(character) { format("\\x%02x", character.ord) }
    end

    # The same, but a text that was cut ends with `…`.
    def shortened(text, chars_max)
      cleaned = clean(text, chars_max + 1)
      cleaned.length <= chars_max ? cleaned : "#{cleaned[0, chars_max - 1]}…"
    end
  end
end
