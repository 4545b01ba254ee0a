//! A panic of a handler, as the program's own hook sees it. One test, because a process has one hook.

use std::sync::{Arc, Mutex};

use serde_json::{json, Value};
use stepwire::testing::Step;
use stepwire::{Context, Handler, StepError};

async fn refuse(_ctx: Context, input: Value) -> Result<Value, StepError> {
    panic!("refused {}", input["key"].as_str().unwrap_or_default())
}

#[test]
fn the_hook_of_the_program_sees_no_value_of_a_secret() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    std::panic::set_hook(Box::new(move |info| into.lock().unwrap().push(info.to_string())));
    let outcome = Step::with_input(json!({"key": {"$secret": "stripe/live"}}))
        .secret("stripe/live", "sk_live_5eb63bbbe01eeed0")
        .run(Handler::new("refuse", refuse));
    assert_eq!(outcome.error.unwrap().message, "panic: refused [secret stripe/live]");
    assert_eq!(seen.lock().unwrap().len(), 0);
    Step::with_input(json!({"key": "x"})).run(Handler::new("refuse", refuse));
    assert!(seen.lock().unwrap()[0].contains("refused x"));
}
