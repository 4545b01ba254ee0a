# frozen_string_literal: true

module Stepwire
  # References to secrets: `{"$secret": "stripe/live"}` stands for a value that only the worker can read.
  #
  # A reference is an object with this one member. Its name is a relative path of plain file names, so that a directory
  # of files can hold the values.
  module SecretReferences
    MEMBER = "$secret"
    NAME_CHARS_MAX = 200
    SHOWN_CHARS_MAX = 60
    NAME_FORM = "names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins with . or -"
    NAME = %r{\A[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\z}

    module_function

    def name?(name)
      name.is_a?(String) && name.length <= NAME_CHARS_MAX && NAME.match?(name)
    end

    # A copy of the value with what the block returns for each name in the place of its reference. Raises
    # SecretUnavailable for an object that has the member `$secret` and is no reference.
    def replace(value, &value_of)
      case value
      when Hash
        return value_of.call(name_in(value)) if value.key?(MEMBER)

        value.transform_values { |inner| replace(inner, &value_of) }
      when Array then value.map { |inner| replace(inner, &value_of) }
      else value
      end
    end

    def name_in(reference)
      if reference.size > 1
        raise SecretUnavailable,
              "a reference to a secret has the one member #{MEMBER}: move the others out of this object"
      end
      name = reference[MEMBER]
      raise SecretUnavailable, "#{shown(name)} is not the name of a secret: #{NAME_FORM}" unless name?(name)

      name
    end

    def shown(name)
      return "a value that is no string" unless name.is_a?(String)

      Texts.quoted(name.length <= SHOWN_CHARS_MAX ? name : "#{name[0, SHOWN_CHARS_MAX]}…")
    end
  end
end
