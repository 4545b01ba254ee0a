package io.stepwire.worker;

import io.stepwire.CurveKeys;
import io.stepwire.protocol.Limits;
import io.stepwire.protocol.Topics;
import io.stepwire.session.Action.Level;
import io.stepwire.session.Link;
import java.io.IOException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;
import org.zeromq.ZMQ.Socket;
import org.zeromq.ZMQException;

/**
 * The worker's two sockets: SUB receives from brokers, PUB sends to brokers. The worker connects,
 * brokers bind. One thread creates, uses and closes them; {@link #wakeUp} may be called by any.
 *
 * <p>{@code protocol/SDK_GUIDE.md}, section 13, explains each option. JeroMQ has no TCP_MAXRT.
 */
final class WorkerSockets implements AutoCloseable {
  private static final int LINGER_MS = 2_000;
  private static final int EMPTY_SIGNALS_MAX = 2;
  private static final long LEAVE_PROCESSOR_NS = 20_000;
  private static final int SEND_HWM = 10_000;
  private static final int PUB_MESSAGE_BYTES_MAX = 64 * 1024;

  private final ZContext context = new ZContext(1);
  private final Selector selector;

  // Successive times that the descriptor was readable, and there was no frame. JeroMQ's thread
  // writes the byte that wakes this thread before it counts that byte. Until then the descriptor
  // stays readable, and there is nothing to receive. If this thread took the other's processor, it
  // would poll in vain until the end of its time slice.
  private int emptySignals;
  private final Socket sub;
  private final Socket pub;
  private final CurveKeys keys; // null without CURVE
  private final WorkerEvents events;
  private final Map<Link, String> serverKeys = new HashMap<>(); // of listed brokers
  private final Set<Link> ignored = new HashSet<>();

  WorkerSockets(
      Selector selector, String workerId, List<Link> links, CurveKeys keys, WorkerEvents events)
      throws IOException {
    this.selector = selector;
    this.keys = keys;
    this.events = events;
    sub = context.createSocket(SocketType.SUB);
    pub = context.createSocket(SocketType.PUB);
    for (Socket socket : new Socket[] {sub, pub}) {
      setOptions(socket);
    }
    sub.setRcvHWM(0); // credit limits the number of messages
    sub.setMaxMsgSize(Limits.FRAME_BYTES_MAX);
    pub.setSndHWM(SEND_HWM);
    pub.setMaxMsgSize(PUB_MESSAGE_BYTES_MAX);
    sub.subscribe(Topics.toWorker(workerId));
    sub.subscribe(Topics.BROKERS);
    sub.getFD().register(selector, SelectionKey.OP_READ);
    links.forEach(link -> connect(link, null));
  }

  private void setOptions(Socket socket) {
    socket.setLinger(0);
    socket.setImmediate(true); // JeroMQ's word for libzmq's IMMEDIATE=0: the queue outlives a break
    socket.setTCPKeepAlive(1);
    socket.setTCPKeepAliveIdle(15);
    socket.setTCPKeepAliveInterval(5);
    socket.setTCPKeepAliveCount(3);
    socket.setReconnectIVL(100);
    socket.setReconnectIVLMax(1000);
    socket.setHandshakeIvl(5000);
    if (keys != null) {
      socket.setCurvePublicKey(CurveKeys.decode(keys.publicKey()));
      socket.setCurveSecretKey(CurveKeys.decode(keys.secretKey()));
    }
  }

  // -- frames -------------------------------------------------------------------------------------

  void send(byte[] frame) {
    pub.send(frame, ZMQ.DONTWAIT);
  }

  /** The next frame; null if there is none now. A message of several frames is dropped. */
  byte[] receive() {
    while (true) {
      byte[] frame = sub.recv(ZMQ.DONTWAIT);
      if (frame == null) {
        return null;
      }
      emptySignals = 0;
      if (!sub.hasReceiveMore()) {
        return frame;
      }
      while (sub.hasReceiveMore()) {
        sub.recv(ZMQ.DONTWAIT);
      }
    }
  }

  /**
   * Waits for frames, or for {@link #wakeUp}. Called only when {@link #receive} has returned null:
   * the descriptor of the socket fires once for each change.
   */
  void poll(long waitMs) throws IOException {
    if (emptySignals > EMPTY_SIGNALS_MAX) {
      LockSupport.parkNanos(LEAVE_PROCESSOR_NS);
    }
    emptySignals = selector.select(Math.max(1, waitMs)) > 0 ? emptySignals + 1 : 0;
    selector.selectedKeys().clear();
  }

  // -- links --------------------------------------------------------------------------------------

  /** {@code serverKey}: the CURVE key of a listed broker; null: the configured one. */
  void connect(Link link, String serverKey) {
    if (link.steps().startsWith("ipc:") || link.results().startsWith("ipc:")) {
      // JeroMQ's ipc is a loopback port of its own, and would connect nowhere.
      if (ignored.add(link)) {
        events.log(Level.WARNING, "link_ignored", Map.of("link", link));
      }
      return;
    }
    if (serverKey != null) {
      serverKeys.put(link, serverKey);
    }
    connect(sub, link, link.steps());
    connect(pub, link, link.results());
  }

  void rebuild(Link link) {
    disconnect(link);
    connect(link, serverKeys.get(link));
  }

  void disconnect(Link link) {
    disconnect(sub, link.steps());
    disconnect(pub, link.results());
  }

  private void connect(Socket socket, Link link, String endpoint) {
    try {
      if (keys != null) {
        String key = serverKeys.getOrDefault(link, keys.serverKey());
        socket.setCurveServerKey(CurveKeys.decode(key));
      }
      // With this option, JeroMQ connects to the IPv6 address of a name that has both.
      socket.setIPv6(endpoint.contains("["));
      if (!socket.connect(endpoint)) {
        throw new ZMQException("not accepted", socket.errno());
      }
    } catch (RuntimeException fault) { // for a name that cannot be resolved now
      String error = String.valueOf(fault.getMessage());
      // Not for people: if no broker answers, the search reports why, in the words of every SDK.
      events.log(Level.DEBUG, "connect_failed", Map.of("endpoint", endpoint, "error", error));
    }
  }

  private static void disconnect(Socket socket, String endpoint) {
    try {
      socket.disconnect(endpoint);
    } catch (RuntimeException gone) {
      // JeroMQ has no such connection any more.
    }
  }

  @Override
  public void close() {
    for (SelectionKey key : selector.keys()) {
      key.cancel();
    }
    sub.close();
    pub.setLinger(LINGER_MS);
    pub.close();
    context.setLinger(LINGER_MS);
    context.close();
  }
}
