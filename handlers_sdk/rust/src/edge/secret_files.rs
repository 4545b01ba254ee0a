//! Reads the value of a secret from a file in STEPWIRE_SECRETS_DIR: `stripe/live` is the file `stripe/live` in there.
//!
//! Symbolic links may lead to files inside the directory, as Kubernetes makes them, and nowhere else.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::secret_values::SecretUnavailable;
use crate::sys::os;

const VALUE_BYTES_MAX: u64 = 64 * 1024;
const STICKY: u32 = 0o1000;

/// The value of the secret with this name, which has the form of a reference.
pub(crate) fn read_secret(directory: &str, name: &str) -> Result<String, SecretUnavailable> {
    let unavailable = |text: String| Err(SecretUnavailable::new(text));
    let unreadable = |error: &io::Error| {
        if error.kind() == ErrorKind::NotFound {
            return SecretUnavailable::new(format!("secret '{name}': there is no such file in {directory}"));
        }
        let reason = reason_of(error);
        SecretUnavailable::new(format!("secret '{name}': its file in {directory} cannot be read: {reason}"))
    };
    let root = match fs::canonicalize(directory) {
        Ok(root) => root,
        Err(error) => {
            let reason = reason_of(&error);
            return unavailable(format!("the directory of secrets '{directory}' cannot be read: {reason}"));
        }
    };
    check_directory(directory, &root)?;
    let path = fs::canonicalize(root.join(name)).map_err(|error| unreadable(&error))?;
    if !path.starts_with(&root) || path == root {
        return unavailable(format!("secret '{name}': its file is a link that leads out of {directory}"));
    }
    let file = open(&path).map_err(|error| unreadable(&error))?;
    let status = file.metadata().map_err(|error| unreadable(&error))?;
    check_file(&format!("secret '{name}': its file in {directory}"), &status)?;
    let mut content = Vec::new();
    file.take(VALUE_BYTES_MAX + 1).read_to_end(&mut content).map_err(|error| unreadable(&error))?;
    value_of(name, content)
}

/// Opens a file without waiting: a pipe would stop the handler for ever.
pub(super) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(os::O_NONBLOCK).open(path)
}

/// The value that the content of a file means. One line end at its end is not part of the value.
pub(crate) fn value_of(name: &str, content: Vec<u8>) -> Result<String, SecretUnavailable> {
    let unavailable = |why: &str| Err(SecretUnavailable::new(format!("secret '{name}': its file {why}")));
    if content.len() as u64 > VALUE_BYTES_MAX {
        return unavailable(&format!("has more than {VALUE_BYTES_MAX} bytes"));
    }
    let text = match String::from_utf8(content) {
        Ok(text) => text,
        Err(_) => return unavailable("is no UTF-8 text; store binary data as Base64"),
    };
    let value = match text.strip_suffix('\n') {
        Some(line) => line.strip_suffix('\r').unwrap_or(line),
        None => &text,
    };
    if value.is_empty() {
        return unavailable("is empty");
    }
    Ok(value.to_owned())
}

fn check_directory(directory: &str, root: &Path) -> Result<(), SecretUnavailable> {
    let fault = |text: String| Err(SecretUnavailable::new(text));
    let status = match fs::metadata(root) {
        Ok(status) => status,
        Err(error) => {
            let reason = reason_of(&error);
            return fault(format!("the directory of secrets '{directory}' cannot be read: {reason}"));
        }
    };
    if !status.is_dir() {
        return fault(format!("the directory of secrets '{directory}' is no directory"));
    }
    if !is_own(&status) {
        return fault(format!("the directory of secrets '{directory}' belongs to another user: chown it"));
    }
    // In a sticky directory, only owners replace files.
    if status.mode() & 0o022 != 0 && status.mode() & STICKY == 0 {
        return fault(format!("other users may write the directory of secrets '{directory}': chmod 700 {directory}"));
    }
    Ok(())
}

fn check_file(subject: &str, status: &Metadata) -> Result<(), SecretUnavailable> {
    let fault = |why: String| Err(SecretUnavailable::new(format!("{subject} {why}")));
    if !status.is_file() {
        return fault("is no regular file".to_owned());
    }
    if !is_own(status) {
        return fault("belongs to another user: chown it".to_owned());
    }
    if status.mode() & 0o027 != 0 {
        let mode = status.mode() & 0o7777;
        return fault(format!("has the mode {mode:04o}, so other users may use it: chmod 600, or 400"));
    }
    Ok(())
}

/// True for files of this user and of root.
pub(super) fn is_own(status: &Metadata) -> bool {
    status.uid() == os::effective_user() || status.uid() == 0
}

/// The system's own text, without the number that Rust adds.
pub(super) fn reason_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::PathBuf;
    use std::process::Command;

    use serde_json::Value;

    use super::*;
    use crate::edge::tests::{temporary, vectors};

    #[test]
    fn the_content_of_a_file_is_its_value() {
        for vector in vectors("secrets.json")["contents"].as_array().unwrap() {
            let value = value_of("card", vector["content"].as_str().unwrap().as_bytes().to_vec()).ok();
            assert_eq!(value.as_deref(), vector["value"].as_str());
        }
    }

    #[test]
    fn a_file_gives_its_value_or_is_refused_in_its_sentence() {
        for vector in vectors("secrets.json")["files"].as_array().unwrap() {
            if vector["needs_root"] == true && os::effective_user() != 0 {
                continue; // only root can give a file away
            }
            let folder = temporary();
            let directory = made(vector, &folder);
            let text = directory.to_str().unwrap();
            let found = read_secret(text, "card");
            match vector["sentence"].as_str() {
                Some(sentence) => {
                    assert_eq!(found.unwrap_err().message, sentence.replace("{directory}", text), "{vector}");
                }
                None => match vector["value_bytes"].as_u64() {
                    Some(bytes) => assert_eq!(found.unwrap().len() as u64, bytes),
                    None => assert_eq!(found.as_deref().ok(), vector["value"].as_str(), "{vector}"),
                },
            }
            fs::remove_dir_all(folder).unwrap();
        }
    }

    fn chmod(path: &Path, mode: &Value) {
        let mode = u32::from_str_radix(mode.as_str().unwrap(), 8).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn run(program: &str, argument: &str, path: &Path) {
        assert!(Command::new(program).arg(argument).arg(path).status().unwrap().success());
    }

    /// The directory that a vector describes.
    fn made(vector: &Value, folder: &Path) -> PathBuf {
        let directory = folder.join("secrets");
        match vector["directory"].as_str() {
            Some("file") => fs::write(&directory, "").unwrap(),
            Some("none") => {}
            mode => {
                fs::create_dir(&directory).unwrap();
                chmod(&directory, &Value::from(mode.unwrap_or("0700")));
                if let Some(owner) = vector["directory_owner"].as_u64() {
                    run("chown", &owner.to_string(), &directory);
                }
            }
        }
        let file = &vector["file"];
        if file.is_null() {
            return directory;
        }
        let mut path = directory.join("card");
        if let Some(link) = file["link"].as_str() {
            symlink(link, &path).unwrap();
            path = directory.join(link);
        }
        if file["folder"] == true {
            fs::create_dir(&path).unwrap();
        } else if file["pipe"] == true {
            run("mkfifo", "--mode=600", &path);
        } else {
            let content = match (file["content"].as_str(), file["bytes"].as_u64()) {
                (Some(content), _) => content.as_bytes().to_vec(),
                (_, Some(bytes)) => vec![b'x'; bytes as usize],
                _ => vec![0xff], // the one vector in Base64
            };
            fs::write(&path, content).unwrap();
            chmod(&path, &file["mode"]);
            if let Some(owner) = file["owner"].as_u64() {
                run("chown", &owner.to_string(), &path);
            }
        }
        directory
    }
}
