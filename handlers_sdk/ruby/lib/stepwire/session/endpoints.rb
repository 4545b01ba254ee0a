# frozen_string_literal: true

module Stepwire
  # The connected links, and the broker at each link if it is known: decides which to connect, when to connect
  # again, and which to disconnect.
  class BrokerLinks
    CHECK_EVERY_MS = 1_000

    attr_reader :check_at_ms

    def initialize(config, brokers, holdings, out)
      @check_at_ms = NEVER
      @has_curve = config.curve
      @broker_of = config.links.to_h { |link| [link, nil] }
      @connected_ms = {}
      @listed_ms = {} # of links learned from a list: when a list last named the broker
      @lists = {}.compare_by_identity # the brokers that each broker listed in its open session
      @keys = {} # the CURVE keys that each broker lists for itself, the current one first
      @key = {} # of links whose latest key is not the configured one
      @moved = {} # by broker: the listed address and key, if another one is connected
      @ignored = [] # brokers that need CURVE keys, which the worker does not have
      @brokers = brokers
      @holdings = holdings
      @out = out
    end

    def start(now_ms)
      @connected_ms = @broker_of.transform_values { now_ms }
      @check_at_ms = now_ms + Limits::SERVER_KEY_RETRY_MS
    end

    # Connect to the brokers that this broker lists. A configured endpoint may be the same broker with another address.
    def learn(peer, listed, now_ms)
      @lists[peer] = listed.map(&:broker)
      listed = listed.reject { |entry| entry.steps.empty? || entry.results.empty? }
      known = @broker_of.compact.invert
      listed.each do |entry|
        link = Link.new(entry.steps, entry.results)
        next unless @broker_of.key?(link) && @broker_of[link].nil?

        @broker_of[link] = entry.broker
        known[entry.broker] = link
      end
      unnamed = @broker_of.select { |_, broker| broker.nil? }.keys
      @broker_of[unnamed.pop] = peer.id if !known.key?(peer.id) && unnamed.size == 1
      listed.each { |entry| connect(entry, known, now_ms) } if unnamed.empty?
      note_addresses(listed)
      return unless @has_curve

      follow_key(peer.id, listed.select { |entry| entry.broker == peer.id }.filter_map(&:server_key), now_ms)
    end

    # The link to this broker, if it is known.
    def link_of(broker)
      @broker_of.key(broker)
    end

    # The links to brokers that no session is open with.
    def without_session
      strangers = @brokers.count { |peer| peer.session && !@broker_of.value?(peer.id) }
      unnamed = @broker_of.select { |_, broker| broker.nil? }.keys
      closed = @broker_of.select { |_, broker| broker && @brokers.get(broker)&.session.nil? }.keys
      strangers < unnamed.size ? closed + unnamed : closed
    end

    # Disconnect brokers that are no longer listed, and connect silent ones again.
    def check(now_ms)
      disconnect_unlisted(now_ms)
      rebuild_silent(now_ms)
      @check_at_ms = now_ms + CHECK_EVERY_MS
    end

    private

    def connect(entry, known, now_ms)
      return if @brokers.known?(entry.broker) || known.key?(entry.broker)
      return ignore(entry.broker) if entry.server_key && !@has_curve

      link = Link.new(entry.steps, entry.results)
      known[entry.broker] = link
      @broker_of[link] = entry.broker
      @connected_ms[link] = @listed_ms[link] = now_ms
      @out.add(Connect.new(link, entry.server_key))
    end

    # Note the addresses of brokers that were learned from a list, if others are connected. The first entry of each
    # broker counts.
    def note_addresses(listed)
      listed.uniq(&:broker).each do |entry|
        connected = link_of(entry.broker)
        next unless @listed_ms.key?(connected)

        link = Link.new(entry.steps, entry.results)
        if link == connected || (entry.server_key && !@has_curve)
          @moved.delete(entry.broker)
        else
          @moved[entry.broker] = [link, entry.server_key]
        end
      end
    end

    # Connect again with the broker's current key if it has changed.
    def follow_key(broker, keys, now_ms)
      return if keys.empty?

      before = @keys.fetch(broker, keys)
      @keys[broker] = keys
      link = link_of(broker)
      return if link.nil? || before[0] == keys[0] || @key[link] == keys[0]

      connect_with(link, keys[0], now_ms)
      @out.log(:info, :server_key_changed, link: link, broker: broker)
    end

    def connect_with(link, key, now_ms)
      @key[link] = key
      @connected_ms[link] = now_ms
      @out.add(Disconnect.new(link))
      @out.add(Connect.new(link, key))
    end

    # The key for the next attempt. A broker that has listed several keys may have changed its key meanwhile.
    def next_key(link, keys)
      used = @key[link] || (keys[0] if keys.size > 1)
      keys[((keys.index(used) || -1) + 1) % keys.size]
    end

    # Disconnect brokers that were learned from a list, are absent from every list for long, and own nothing.
    def disconnect_unlisted(now_ms)
      return if @listed_ms.empty?

      listed = @lists.flat_map { |peer, brokers| peer.session ? brokers : [] }
      @listed_ms.to_a.each do |link, listed_ms|
        broker = @broker_of[link]
        peer = @brokers.get(broker)
        if listed.include?(broker)
          @listed_ms[link] = now_ms
        elsif now_ms - listed_ms >= Limits::UNLISTED_MS && (peer.nil? || unused?(peer))
          remove(link, peer)
          @out.log(:info, :link_removed, link: link, broker: broker)
        end
      end
    end

    def unused?(peer)
      peer.session.nil? && @holdings.of_broker(peer).empty?
    end

    def remove(link, peer)
      @moved.delete(@broker_of[link])
      [@listed_ms, @broker_of, @connected_ms, @key].each { |links| links.delete(link) }
      if peer
        @lists.delete(peer)
        @keys.delete(peer.id)
        @brokers.forget(peer)
      end
      @out.add(Disconnect.new(link))
    end

    # Connect silent links again. A refused or dead connection reports no error, and never recovers by itself.
    def rebuild_silent(now_ms)
      named = @broker_of.values.compact
      unnamed = @broker_of.count { |_, broker| broker.nil? }
      since_ms = now_ms - Limits::SOCKET_REBUILD_MS
      strangers = @brokers.count { |p| p.session && !named.include?(p.id) && p.answered_ms > since_ms }
      @broker_of.to_a.each do |link, broker|
        peer = broker && @brokers.get(broker)
        next if broker.nil? && strangers >= unnamed

        answered_ms = peer ? peer.answered_ms : -NEVER
        keys = @keys.fetch(broker, [])
        silent_ms = keys.size > 1 ? Limits::SERVER_KEY_RETRY_MS : Limits::SOCKET_REBUILD_MS
        next if [answered_ms, @connected_ms[link]].max > now_ms - silent_ms

        moved = @moved.delete(broker)
        if moved && !@broker_of.key?(moved[0])
          move(link, *moved, now_ms)
          next
        end
        connect_again(link, keys, now_ms)
        @out.log(:debug, :link_rebuilt, link: link, broker: broker)
      end
    end

    # Connect a broker at the address that a list named last, instead of this one.
    def move(link, to, key, now_ms)
      broker = @broker_of[to] = @broker_of.delete(link)
      @listed_ms[to] = @listed_ms.delete(link)
      @connected_ms.delete(link)
      @connected_ms[to] = now_ms
      @key.delete(link)
      @key[to] = key if key
      @out.add(Disconnect.new(link))
      @out.add(Connect.new(to, key))
      @out.log(:info, :link_moved, link: to, broker: broker)
    end

    def connect_again(link, keys, now_ms)
      return connect_with(link, next_key(link, keys), now_ms) unless keys.empty?

      @connected_ms[link] = now_ms
      @out.add(Rebuild.new(link))
    end

    # Do not connect to a broker that requires CURVE keys. Logged once for each broker.
    def ignore(broker)
      return if @ignored.include?(broker)

      @ignored << broker
      @out.log(:warning, :broker_ignored, broker: broker)
    end
  end
end
