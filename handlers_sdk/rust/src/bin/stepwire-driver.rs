//! The session of this SDK for the conformance kit: ops on stdin, replies on stdout.

fn main() -> std::io::Result<()> {
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    stepwire::driver::serve(stdin.lock(), stdout.lock())
}
