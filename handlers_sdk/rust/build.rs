//! Links the system's libzmq. `pkg-config` only helps to find a library outside the linker's own paths.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=STEPWIRE_LIBZMQ_DIR");
    if let Ok(folder) = std::env::var("STEPWIRE_LIBZMQ_DIR") {
        println!("cargo:rustc-link-search=native={folder}");
    } else if let Ok(found) = Command::new("pkg-config").args(["--libs-only-L", "libzmq"]).output() {
        for folder in String::from_utf8_lossy(&found.stdout).split_whitespace() {
            println!("cargo:rustc-link-search=native={}", folder.trim_start_matches("-L"));
        }
    }
    println!("cargo:rustc-link-lib=zmq");
}
