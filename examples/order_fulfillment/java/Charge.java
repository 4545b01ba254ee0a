import io.stepwire.Context;
import io.stepwire.Worker;

/** The worker of orders.charge: it takes the money. The step is at_most_once. */
public final class Charge {
  record Payment(String customer, long cents) {}

  record Charged(String transaction, String key) {}

  static Charged charge(Context context, Payment payment) {
    context.log().info("charging " + payment.customer());
    // The key is the same in every attempt: a payment service that knows it does not charge twice.
    String transaction = "T-" + context.taskId() + "-" + payment.cents();
    return new Charged(transaction, context.idempotencyKey());
  }

  public static void main(String[] arguments) {
    Worker worker = Worker.fromEnv();
    worker.handle("orders.charge", Payment.class, Charge::charge);
    worker.run();
  }

  private Charge() {}
}
