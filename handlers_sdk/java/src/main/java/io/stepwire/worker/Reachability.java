package io.stepwire.worker;

import io.stepwire.CurveKeys;
import io.stepwire.session.Link;
import java.io.IOException;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;

/** Why no broker answers at an endpoint: ZeroMQ reports nothing, so this class looks itself. */
final class Reachability {
  private static final int CONNECT_MS = 1_000;
  private static final String ELSEWHERE =
      "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints";

  /** The endpoint at fault, and why no broker answers there. */
  record Diagnosis(String endpoint, String reason) {}

  private Reachability() {}

  /** Waits at most CONNECT_MS for each connection. */
  static Diagnosis diagnose(Link link, CurveKeys keys) {
    for (String endpoint : new String[] {link.steps(), link.results()}) {
      String fault = faultOf(endpoint);
      if (fault != null) {
        return new Diagnosis(endpoint, fault);
      }
    }
    return new Diagnosis(
        link.steps(),
        "a process accepts connections there, but does not answer as a broker. Check that"
            + " STEPWIRE_STEPS and STEPWIRE_RESULTS name the broker's `bus.steps` and"
            + " `bus.results`, in this order, and not its HTTP address"
            + (keys == null
                ? ". A broker with CURVE needs keys, STEPWIRE_CURVE_FILE"
                : ". Check also the three CURVE keys: "
                    + WorkerEvents.keyOf(keys)
                    + ", and its log for the code (connection_refused)"));
  }

  /** Null if a process accepts connections there. */
  private static String faultOf(String endpoint) {
    if (endpoint.startsWith("ipc:")) {
      return "JeroMQ cannot connect to a Unix socket: use the broker's tcp listener";
    }
    String rest = endpoint.substring(endpoint.indexOf("://") + 3);
    int colon = rest.lastIndexOf(':');
    String host = rest.substring(0, colon).replace("[", "").replace("]", "");
    int port = Integer.parseInt(rest.substring(colon + 1));
    InetSocketAddress address = new InetSocketAddress(host, port);
    if (address.isUnresolved()) {
      return "the host name '"
          + host
          + "' cannot be resolved: check its spelling, and the name service of this machine";
    }
    try (Socket probe = new Socket()) {
      probe.connect(address, CONNECT_MS);
      return null;
    } catch (SocketTimeoutException late) {
      return "no answer: the host is down, or a firewall drops the connection";
    } catch (ConnectException refused) {
      return "no process listens on port "
          + port
          + ". Start the broker with this endpoint, or "
          + ELSEWHERE;
    } catch (IOException fault) {
      return String.valueOf(fault.getMessage());
    }
  }
}
