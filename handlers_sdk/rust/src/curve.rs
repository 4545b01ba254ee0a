//! The CURVE keys of a worker: from variables or a file, all three or none. No error names a key: it could be the secret
//! one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;

use crate::errors::ConfigurationError;
use crate::protocol::topics;
use crate::sys::zmq;
use crate::texts::quoted;

const FILE: &str = "STEPWIRE_CURVE_FILE";
const SERVER: &str = "STEPWIRE_CURVE_SERVER_KEY";
const PUBLIC: &str = "STEPWIRE_CURVE_PUBLIC_KEY";
const SECRET: &str = "STEPWIRE_CURVE_SECRET_KEY";
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The keys with which a worker connects, in Z85.
#[derive(Clone, PartialEq, Eq)]
pub struct CurveKeys {
    /// The public key of the brokers.
    pub server_key: String,
    /// The public key of this service.
    pub public_key: String,
    /// The secret key of this service.
    pub secret_key: String,
}

impl std::fmt::Debug for CurveKeys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("CurveKeys(…)")
    }
}

/// The keys of STEPWIRE_CURVE_FILE, and of the variables, which win.
pub(crate) fn read(variable: &impl Fn(&str) -> Option<String>) -> Result<Option<CurveKeys>, ConfigurationError> {
    let mut found = match variable(FILE) {
        Some(path) => of_file(&path)?,
        None => BTreeMap::new(),
    };
    for name in [SERVER, PUBLIC, SECRET] {
        if let Some(value) = variable(name) {
            found.insert(name, value);
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let mut take = |name| found.remove(name).unwrap_or_default();
    let keys = CurveKeys { server_key: take(SERVER), public_key: take(PUBLIC), secret_key: take(SECRET) };
    check(&keys)?;
    Ok(Some(keys))
}

/// Checks all three keys, and that the pair is one.
pub(crate) fn check(keys: &CurveKeys) -> Result<(), ConfigurationError> {
    for (name, key) in [(SERVER, &keys.server_key), (PUBLIC, &keys.public_key), (SECRET, &keys.secret_key)] {
        if key.is_empty() {
            return Err(ConfigurationError::new(format!(
                "{name} is missing: CURVE needs {SERVER}, {PUBLIC} and {SECRET}, as variables or in the file that \
                 {FILE} names"
            )));
        }
        if !topics::is_curve_key(key) {
            return Err(ConfigurationError::new(format!(
                "{name} is no key: it needs 40 characters of Z85, and has {} characters",
                key.chars().count()
            )));
        }
    }
    if !zmq::has_curve() {
        return Err(ConfigurationError::new(format!(
            "{SECRET} is set, but this libzmq has no CURVE: install one with libsodium, such as Debian's libzmq5"
        )));
    }
    if zmq::curve_public(&keys.secret_key).map_or(true, |public| public != keys.public_key) {
        return Err(ConfigurationError::new(format!(
            "{PUBLIC} does not belong to {SECRET}: take both from one key pair"
        )));
    }
    Ok(())
}

/// The lines NAME='value' of a key file. Other lines are ignored.
fn of_file(path: &str) -> Result<BTreeMap<&'static str, String>, ConfigurationError> {
    let fault = |why: String| ConfigurationError::new(format!("{FILE} is {}: {why}", quoted(path)));
    let unreadable = |error: std::io::Error| {
        let reason = match error.kind() {
            ErrorKind::NotFound => "No such file or directory".to_owned(),
            ErrorKind::PermissionDenied => "Permission denied".to_owned(),
            ErrorKind::InvalidData => "it is no text".to_owned(),
            _ => error.to_string(),
        };
        fault(format!("it cannot be read: {reason}"))
    };
    let file = File::open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        return Err(fault(format!(
            "its group or others may use this file, and it holds a secret key: chmod 600 {path}"
        )));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text.lines().filter_map(key_of_line).collect())
}

fn key_of_line(line: &str) -> Option<(&'static str, String)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let name = [SERVER, PUBLIC, SECRET].into_iter().find(|known| *known == name.trim())?;
    let value = value.trim();
    let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    let value = quoted('\'').or_else(|| quoted('"')).unwrap_or(value);
    (!value.is_empty()).then(|| (name, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    const SERVER_OF_TEST: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"; // of ZeroMQ's documentation
    const SECRET_OF_TEST: &str = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"; // its secret half
    const PUBLIC_OF_TEST: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";

    fn fault(pairs: &[(&str, &str)]) -> String {
        let variable =
            |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        match read(&variable) {
            Ok(keys) => format!("{keys:?}"),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn without_any_key_there_is_no_curve() {
        assert_eq!(fault(&[]), "None");
    }

    #[test]
    fn a_missing_or_malformed_key_has_its_sentence() {
        assert_eq!(
            fault(&[(SERVER, SERVER_OF_TEST), (PUBLIC, PUBLIC_OF_TEST)]),
            "STEPWIRE_CURVE_SECRET_KEY is missing: CURVE needs STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY \
             and STEPWIRE_CURVE_SECRET_KEY, as variables or in the file that STEPWIRE_CURVE_FILE names"
        );
        assert_eq!(
            fault(&[(SERVER, SERVER_OF_TEST), (PUBLIC, "short"), (SECRET, SECRET_OF_TEST)]),
            "STEPWIRE_CURVE_PUBLIC_KEY is no key: it needs 40 characters of Z85, and has 5 characters"
        );
    }

    #[test]
    fn halves_of_two_pairs_are_refused_and_no_key_is_shown() {
        let text = fault(&[(SERVER, SERVER_OF_TEST), (PUBLIC, SERVER_OF_TEST), (SECRET, SECRET_OF_TEST)]);
        assert_eq!(
            text,
            "STEPWIRE_CURVE_PUBLIC_KEY does not belong to STEPWIRE_CURVE_SECRET_KEY: take both from one key pair"
        );
    }

    #[test]
    fn a_file_holds_the_keys_only_if_nobody_else_may_use_it() {
        let path = std::env::temp_dir().join(format!("stepwire-curve-{}", std::process::id()));
        let mut file =
            std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path).unwrap();
        writeln!(
            file,
            "# keys\n{SERVER}='{SERVER_OF_TEST}'\nexport {PUBLIC}=\"{PUBLIC_OF_TEST}\"\n{SECRET}={SECRET_OF_TEST}"
        )
        .unwrap();
        let name = path.to_str().unwrap();
        assert_eq!(fault(&[(FILE, name)]), "Some(CurveKeys(…))");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(
            fault(&[(FILE, name)]),
            format!(
                "STEPWIRE_CURVE_FILE is '{name}': its group or others may use this file, and it holds a secret key: \
                 chmod 600 {name}"
            )
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            fault(&[(FILE, name)]),
            format!("STEPWIRE_CURVE_FILE is '{name}': it cannot be read: No such file or directory")
        );
    }
}
