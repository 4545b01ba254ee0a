# frozen_string_literal: true

require "ffi"

module Stepwire
  # Functions of the C library that Ruby does not have.
  module Native
    extend FFI::Library
    ffi_lib FFI::CURRENT_PROCESS # the C library of this process, on glibc and on musl

    PR_SET_PDEATHSIG = 1
    SIGKILL = 9

    attach_function :dup2, %i[int int], :int
    begin
      attach_function :prctl, %i[int ulong ulong ulong ulong], :int
      HAS_PRCTL = RUBY_PLATFORM.include?("linux")
    rescue FFI::NotFoundError
      HAS_PRCTL = false
    end

    module_function

    # Let the kernel kill this process when the thread that forked it ends. False if the system has no such call.
    def die_with_parent
      HAS_PRCTL && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0).zero?
    end

    # Put /dev/null in the place of a descriptor. The number stays taken, so a library that also inherited the
    # descriptor never writes into another file.
    def replace_with_null(descriptor, null)
      dup2(null.fileno, descriptor)
    end
  end
end
