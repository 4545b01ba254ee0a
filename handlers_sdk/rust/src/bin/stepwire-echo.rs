//! A bare level-0 echo on the same binding, without worker, session or context: the base of the speed table.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepwire::bench::BareSockets;

#[derive(Deserialize)]
struct Batch {
    batch_id: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    step_id: u64,
    task_context: Value,
}

#[derive(Serialize)]
struct Answer<'a> {
    batch_id: &'a str,
    protocol_version: &'static str,
    results: Vec<StepResult<'a>>,
}

#[derive(Serialize)]
struct StepResult<'a> {
    step_id: u64,
    status: &'static str,
    output: &'a Value,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sockets = BareSockets::connect(&std::env::var("STEPWIRE_STEPS")?, &std::env::var("STEPWIRE_RESULTS")?)?;
    sockets.serve(|frame| {
        let body = frame.strip_prefix(b"steps ")?; // other topics reach every connection, too
        let batch: Batch = serde_json::from_slice(body).ok()?;
        let answers = batch.steps.iter();
        let results = answers.map(|s| StepResult { step_id: s.step_id, status: "completed", output: &s.task_context });
        let results = results.collect();
        let answer = Answer { batch_id: &batch.batch_id, protocol_version: "1.0", results };
        let mut reply = b"results ".to_vec();
        serde_json::to_writer(&mut reply, &answer).ok()?;
        Some(reply)
    })
}
