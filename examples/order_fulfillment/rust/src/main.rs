//! The worker of orders.screen: it refuses payments that a person should look at.

use serde::{Deserialize, Serialize};
use stepwire::{ConfigurationError, Context, StepError, Worker};

const SCREENED_CENTS: u32 = 100_000;

#[derive(Deserialize)]
struct Payment {
    customer: String,
    cents: u32,
}

#[derive(Serialize)]
struct Screened {
    risk: f64,
}

async fn screen(ctx: Context, payment: Payment) -> Result<Screened, StepError> {
    ctx.log().info(&format!("screening {}", payment.customer));
    if payment.cents > SCREENED_CENTS {
        let message = format!("{} cents need a signature", payment.cents);
        return Err(StepError::permanent(message).code("too_expensive"));
    }
    Ok(Screened {
        risk: f64::from(payment.cents) / f64::from(SCREENED_CENTS),
    })
}

fn worker() -> Result<Worker, ConfigurationError> {
    let mut worker = Worker::from_env()?;
    worker.handle("orders.screen", screen)?;
    Ok(worker)
}

fn main() {
    if let Err(error) = worker().and_then(|mut worker| worker.run()) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
