//! Why no broker answers at an endpoint: ZeroMQ reports nothing, so this module looks itself.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::events;
use crate::actions::Link;
use crate::texts::quoted;

const CONNECT: Duration = Duration::from_secs(1);
const ELSEWHERE: &str = "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints";

/// The endpoint at fault, and why no broker answers there. Waits at most CONNECT for each connection.
pub(super) fn diagnosis(link: &Link, public_key: Option<&str>) -> (String, String) {
    for endpoint in [&link.steps, &link.results] {
        if let Some(fault) = fault(endpoint) {
            return (shown(endpoint), fault);
        }
    }
    let keys = if public_key.is_some() {
        let own = events::key_of(public_key);
        format!("Check also the three CURVE keys: {own}, and its log for the code (connection_refused)")
    } else {
        "A broker with CURVE needs keys, STEPWIRE_CURVE_FILE".to_owned()
    };
    let text = format!(
        "a process accepts connections there, but does not answer as a broker. Check that STEPWIRE_STEPS and \
         STEPWIRE_RESULTS name the broker's `bus.steps` and `bus.results`, in this order, and not its HTTP address. {keys}"
    );
    (shown(&link.steps), text)
}

/// The endpoint with an absolute path.
fn shown(endpoint: &str) -> String {
    match path_of(endpoint) {
        Some(path) => {
            let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
            format!("ipc://{}", folder.join(path).display())
        }
        None => endpoint.to_owned(),
    }
}

/// The path of an ipc endpoint; None for other transports and for abstract names.
fn path_of(endpoint: &str) -> Option<&Path> {
    endpoint.strip_prefix("ipc://").filter(|path| !path.starts_with('@')).map(Path::new)
}

fn fault(endpoint: &str) -> Option<String> {
    if let Some(path) = path_of(endpoint) {
        return fault_of_path(path);
    }
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    fault_of_address(host.trim_matches(|c| c == '[' || c == ']'), port.parse().ok()?)
}

fn fault_of_path(path: &Path) -> Option<String> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Some("this user may not read the directory".to_owned());
        }
        Err(_) if path.is_absolute() => {
            return Some(format!("there is no such socket. Start the broker, or {ELSEWHERE}"));
        }
        Err(_) => {
            return Some(format!(
                "there is no such socket. The path is relative to this directory: \
                 start the worker where the broker runs, or {ELSEWHERE}"
            ));
        }
    };
    if !found.file_type().is_socket() {
        return Some(format!("this is not a socket. Remove it, or {ELSEWHERE}"));
    }
    match UnixStream::connect(path) {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Some("this user may not connect to the socket: run worker and broker as the same user".to_owned())
        }
        Err(_) => Some("the socket exists, but no process listens there. Start the broker".to_owned()),
    }
}

fn fault_of_address(host: &str, port: u16) -> Option<String> {
    let addresses = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(_) => {
            return Some(format!(
                "the host name {} cannot be resolved: check its spelling, and the name service of this machine",
                quoted(host)
            ));
        }
    };
    let mut fault = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(_) => return None,
            Err(error) => fault = Some(error),
        }
    }
    let error = fault?;
    Some(match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            "no answer: the host is down, or a firewall drops the connection".to_owned()
        }
        ErrorKind::ConnectionRefused => {
            format!("no process listens on port {port}. Start the broker with this endpoint, or {ELSEWHERE}")
        }
        _ => error.to_string(),
    })
}
