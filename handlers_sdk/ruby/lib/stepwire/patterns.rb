# frozen_string_literal: true

module Stepwire
  # Patterns for handler names of `::`-separated segments: `*` as a segment matches exactly one segment, `**` any number
  # of segments, and `*` inside a segment any number of its characters; everything else is literal. The matcher keeps
  # one position to return to, so its time is at most the length of the pattern times the length of the name.
  module Patterns
    SEPARATOR = "::"
    ANY = "**"

    module_function

    # True if the text can match more than one name.
    def pattern?(text)
      text.include?("*")
    end

    def match?(pattern, name)
      globs = compile(pattern)
      segments = segments_of(name)
      at = taken = back_taken = 0
      back_to = nil # the last `**`: after a mismatch, it matches one more segment
      while taken < segments.size
        if at < globs.size && globs[at] == ANY
          back_to = at
          back_taken = taken
          at += 1
        elsif at < globs.size && segment_match?(globs[at], segments[taken])
          at += 1
          taken += 1
        elsif back_to
          back_taken += 1
          at = back_to + 1
          taken = back_taken
        else
          return false
        end
      end
      (globs[at..] || []).all?(ANY)
    end

    def segments_of(text)
      text.empty? ? [""] : text.split(SEPARATOR, -1)
    end

    # The segments of the pattern: `**`, or the literal pieces between the stars of a segment.
    def compile(text)
      segments_of(text).each_with_object([]) do |segment, globs|
        if segment != ANY
          globs << (segment.empty? ? [""] : segment.split("*", -1))
        elsif globs.last != ANY # `**::**` is `**`
          globs << ANY
        end
      end
    end

    # Match the first and the last piece at the ends, and each other piece at the leftmost position between them.
    def segment_match?(pieces, segment)
      return segment == pieces[0] if pieces.size == 1

      first = pieces.first
      last = pieces.last
      finish = segment.length - last.length
      return false if finish < first.length || !segment.start_with?(first) || !segment.end_with?(last)

      at = first.length
      pieces[1..-2].each do |piece|
        start = segment.index(piece, at)
        return false if start.nil? || start + piece.length > finish

        at = start + piece.length
      end
      true
    end
  end
end
