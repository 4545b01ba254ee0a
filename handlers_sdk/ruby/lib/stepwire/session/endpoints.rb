# frozen_string_literal: true

module Stepwire
  # The connected links, and the broker at each link if it is known: decides which to connect, and when to connect
  # again.
  class BrokerLinks
    CHECK_EVERY_MS = 1_000

    attr_reader :check_at_ms

    def initialize(links, brokers, out)
      @check_at_ms = NEVER
      @broker_of = links.to_h { |link| [link, nil] }
      @connected_ms = {}
      @brokers = brokers
      @out = out
    end

    def start(now_ms)
      @connected_ms = @broker_of.transform_values { now_ms }
      @check_at_ms = now_ms + Limits::SOCKET_REBUILD_MS
    end

    # Connect to the brokers that a welcome lists. A configured endpoint may be the same broker with another address.
    def learn(peer, message, now_ms)
      known = @broker_of.compact.invert
      message.brokers.each do |entry|
        link = Link.new(entry.steps, entry.results)
        next unless @broker_of.key?(link) && @broker_of[link].nil?

        @broker_of[link] = entry.broker
        known[entry.broker] = link
      end
      unnamed = @broker_of.select { |_, broker| broker.nil? }.keys
      @broker_of[unnamed.pop] = peer.id if !known.key?(peer.id) && unnamed.size == 1
      message.brokers.each do |entry|
        next if @brokers.known?(entry.broker) || known.key?(entry.broker) || !unnamed.empty?

        link = Link.new(entry.steps, entry.results)
        @broker_of[link] = entry.broker
        @connected_ms[link] = now_ms
        @out.add(Connect.new(link))
      end
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

    def rebuild_silent(now_ms)
      named = @broker_of.values.compact
      unnamed = @broker_of.count { |_, broker| broker.nil? }
      since_ms = now_ms - Limits::SOCKET_REBUILD_MS
      strangers = @brokers.count { |p| p.session && !named.include?(p.id) && p.answered_ms > since_ms }
      @broker_of.each do |link, broker|
        peer = broker && @brokers.get(broker)
        next if broker.nil? && strangers >= unnamed

        answered_ms = peer ? peer.answered_ms : -NEVER
        next if [answered_ms, @connected_ms[link]].max > since_ms

        @connected_ms[link] = now_ms
        @out.add(Rebuild.new(link))
        @out.log(:debug, :link_rebuilt, link: link, broker: broker)
      end
      @check_at_ms = now_ms + CHECK_EVERY_MS
    end
  end
end
