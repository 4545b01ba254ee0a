# frozen_string_literal: true

module Stepwire
  # The unacknowledged results messages by `rid`. They are kept and resent.
  class ResultsOutbox
    attr_reader :bytes, :resend_at_ms

    def initialize(out)
      @bytes = 0
      @resend_at_ms = NEVER
      @messages = {}
      @out = out
    end

    # Send the message, and keep it until it is acknowledged.
    def send_message(message)
      @messages[message.rid] = message
      @bytes += message.body.bytesize
      @resend_at_ms = message.at_ms if message.at_ms < @resend_at_ms
      @out.send_body(message.peer.topic, message.body)
    end

    def remove(rid)
      message = @messages.delete(rid)
      @bytes -= message.body.bytesize if message
      message
    end

    # Remove the messages for a broker whose database was replaced. Returns their number.
    def discard(peer)
      rids = @messages.each_value.filter_map { |message| message.rid if message.peer.equal?(peer) }
      rids.each { |rid| remove(rid) }
      rids.size
    end

    # Resend the messages that are due, and schedule the next attempt of each.
    def resend(now_ms)
      at_ms = NEVER
      @messages.each_value do |message|
        resend_one(message, now_ms) if message.at_ms <= now_ms
        at_ms = message.at_ms if message.at_ms < at_ms
      end
      @resend_at_ms = at_ms
    end

    # Send this message with the next actions.
    def hasten(message, now_ms)
      message.at_ms = @resend_at_ms = now_ms
    end

    # Send the messages for this broker with the next actions, because its session has just opened.
    def hasten_all(peer, now_ms)
      @messages.each_value { |message| hasten(message, now_ms) if message.peer.equal?(peer) }
    end

    private

    def resend_one(message, now_ms)
      renew(message)
      message.tries += 1
      message.wait_ms = [message.wait_ms * 2, Limits::RESULTS_RETRANSMIT_MAX_MS.to_f].min
      message.at_ms = now_ms + message.wait_ms
      @out.send_body(message.peer.topic, message.body)
      return if message.tries < Limits::RESULTS_BROADCAST_FROM_TRY

      # The owner may be gone, and the worker cannot know which broker owns its steps now.
      @out.send_body(Topics::RESULTS, message.body)
    end

    # Put the current session into the message. `n` and `free` stay unchanged: an old `n` marks old credit.
    def renew(message)
      session = message.peer.session
      return if session.nil? || session == message.session

      @bytes -= message.body.bytesize
      message.session = session
      start = message.peer.results_start(@out.worker, session)
      message.body = Codec.encode_results(start, message.batch.id, message.rid, message.n, message.free,
                                          message.slots_free, message.done.map(&:result))
      @bytes += message.body.bytesize
    end
  end
end
