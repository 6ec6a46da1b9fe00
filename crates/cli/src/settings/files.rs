//! The files of a configuration: reading them, and finding those they import.

use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use tidegate_config::{Files, MAX_FILE_SIZE};
use tidegate_core::env::{Disk, system};

/// The name of standard input on a command line.
const DASH: &str = "-";
/// Its name in messages.
const STANDARD_INPUT: &str = "standard input";

/// The name of a file in messages.
pub(crate) fn name_of(path: &Path) -> String {
    if path == Path::new(DASH) {
        STANDARD_INPUT.to_owned()
    } else {
        path.display().to_string()
    }
}

/// The text of a file, a pipe, a device or standard input, up to the limit of a configuration.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {at} is not UTF-8"),
        )
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if path == Path::new(DASH) || path == Path::new("/dev/stdin") {
        return read_to_end(io::stdin().lock());
    }
    let metadata = std::fs::metadata(path)?;
    // A pipe has no length, and neither do the files of /proc: only their end tells it.
    if metadata.is_dir() || (metadata.is_file() && metadata.len() > 0) {
        let disk: &dyn Disk = &system::SystemDisk;
        return disk.read(path, MAX_FILE_SIZE as u64);
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads what is no file: a `Disk` reads at offsets"
    )]
    let stream = std::fs::File::open(path)?;
    read_to_end(stream)
}

fn read_to_end(stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more than is allowed tells whether there is more.
    stream
        .take(MAX_FILE_SIZE as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > MAX_FILE_SIZE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is too large, with more than {MAX_FILE_SIZE} bytes"),
        ));
    }
    Ok(bytes)
}

/// The files beside the one that is read.
pub(crate) struct SiblingFiles;

impl Files for SiblingFiles {
    fn find(&mut self, importer: &str, pattern: &str) -> Result<Vec<String>, String> {
        let path = resolve(importer, pattern);
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
        else {
            return Err("names no file".to_owned());
        };
        if dir.to_string_lossy().contains('*') {
            return Err("has a `*` before its last part".to_owned());
        }
        if !name.contains('*') {
            return Ok(vec![path.display().to_string()]);
        }
        let disk: &dyn Disk = &system::SystemDisk;
        let listed = if dir == Path::new("") {
            disk.list(Path::new("."))
        } else {
            disk.list(dir)
        };
        match listed {
            // The port lists by name, so the order is the same everywhere.
            Ok(entries) => Ok(entries
                .iter()
                .filter(|entry| !entry.is_dir && matches(name, &entry.name))
                .map(|entry| dir.join(&entry.name).display().to_string())
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(format!("cannot be listed: {error}")),
        }
    }

    fn read(&mut self, name: &str) -> Result<String, String> {
        read_text(Path::new(name)).map_err(|error| format!("cannot be read: {error}"))
    }
}

/// The path that a pattern means in a file: beside that file, or beside us where it has no place.
fn resolve(importer: &str, pattern: &str) -> PathBuf {
    let has_place = importer != STANDARD_INPUT && !importer.starts_with("/dev/");
    let dir = Path::new(importer).parent().filter(|_| has_place);
    let path = dir.unwrap_or(Path::new("")).join(pattern);
    // The same file must have the same name, however it is imported.
    path.components()
        .filter(|part| *part != Component::CurDir)
        .collect()
}

/// Whether a name matches a pattern in which `*` stands for any characters. As in a shell, a name
/// that begins with a dot is matched only by a pattern that does.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expect) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", ".yaml", false),
            (".*", ".yaml", true),
            ("*", "a", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "axbyc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a.yaml", "a.yaml", true),
            ("a.yaml", "a.yaml2", false),
            ("*.yaml", "a.yml", false),
        ] {
            assert_eq!(matches(pattern, name), expect, "{pattern} {name}");
        }
    }

    #[test]
    fn a_path_is_beside_the_file_that_names_it() {
        for (importer, pattern, expect) in [
            ("tidegate.yaml", "conf.d/*.yaml", "conf.d/*.yaml"),
            ("./tidegate.yaml", "./conf.d/./a", "conf.d/a"),
            ("/etc/tidegate.yaml", "conf.d/a", "/etc/conf.d/a"),
            ("conf.d/a", "../b", "conf.d/../b"),
            ("conf.d/a", "/b", "/b"),
            ("/dev/fd/63", "a", "a"),
            (STANDARD_INPUT, "a", "a"),
        ] {
            assert_eq!(
                resolve(importer, pattern),
                Path::new(expect),
                "{importer} {pattern}"
            );
        }
    }
}
