//! What to type to follow a piece of advice.

use std::path::Path;

use predict::advice::Action;

/// The command for a POSIX shell; `None` where nothing is to be done.
pub(super) fn of(action: Action, path: &str, format_option: Option<&str>) -> Option<String> {
    let format = format_option.map(|format| format!(" -f {format}")).unwrap_or_default();
    let disk = quoted(path);
    match action {
        Action::Compact => Some(format!("leandisk compact{format} {disk}")),
        Action::Defrag => Some(format!("leandisk defrag{format} {disk}")),
        Action::CopyPacked => {
            Some(format!("leandisk copy --layout packed{format} {disk} {}", quoted(&packed_path(path))))
        }
        Action::Nothing => None,
    }
}

/// `disk.vhdx` becomes `disk-packed.vhdx`, a device the raw file `sda-packed.raw` in the current folder.
fn packed_path(path: &str) -> String {
    let path = Path::new(path);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    if path.starts_with("/dev") {
        return format!("{stem}-packed.raw");
    }
    let name = match path.extension() {
        Some(extension) => format!("{stem}-packed.{}", extension.to_string_lossy()),
        None => format!("{stem}-packed.raw"),
    };
    path.with_file_name(name).to_string_lossy().into_owned()
}

/// A word of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./+:@%=,".contains(c);
    let name = if text.starts_with('-') { format!("./{text}") } else { text.to_owned() };
    match !name.is_empty() && name.chars().all(is_plain) {
        true => name,
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted() {
        let command = |action, path| of(action, path, None).unwrap();
        assert_eq!(command(Action::Compact, "/vm/a.vhdx"), "leandisk compact /vm/a.vhdx");
        assert_eq!(command(Action::Defrag, "my disk's.raw"), r"leandisk defrag 'my disk'\''s.raw'");
        assert_eq!(command(Action::Defrag, "-f"), "leandisk defrag ./-f");
        assert_eq!(
            command(Action::CopyPacked, "/vm/a.vhdx"),
            "leandisk copy --layout packed /vm/a.vhdx /vm/a-packed.vhdx"
        );
        assert_eq!(packed_path("/dev/vg/a"), "a-packed.raw");
        assert_eq!(of(Action::Compact, "a", Some("raw")).unwrap(), "leandisk compact -f raw a");
        assert_eq!(of(Action::Nothing, "a", None), None);
    }
}
