pub mod run_slots;
