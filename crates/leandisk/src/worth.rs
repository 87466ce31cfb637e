//! What was gained and what it is worth: documents of before and after, compared, on one page.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use block::{Error, Result};
use report::{
    Assumptions, CorruptInput, ListedFile, Wanted, When, WorthDocument, WorthInput, WorthSubject, is_listing,
    worth_document, worth_page,
};

use crate::Observer;
use crate::output::OutputFile;

/// A document is no larger.
const DOCUMENT_BYTES_MAX: u64 = 64 << 20;
/// Nor is a file of assumptions.
const ASSUMPTIONS_BYTES_MAX: u64 = 1 << 20;

/// What is compared.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Documents of the state before, and lists of its files.
    pub before: Vec<PathBuf>,
    /// Documents of the state after, and lists of its files.
    pub after: Vec<PathBuf>,
    /// A file of assumptions; without it they are as [`report::ASSUMPTIONS_TOML`] has them.
    pub assumptions: Option<PathBuf>,
    /// Where the page goes, if anywhere.
    pub html: Option<PathBuf>,
    /// Whether that replaces a file that is there.
    pub force: bool,
}

/// Compares the documents. `Refused` if they have no figure in common.
pub fn run(options: &Options, observer: &dyn Observer) -> Result<WorthDocument> {
    let inputs: Vec<&Path> = options
        .before
        .iter()
        .chain(&options.after)
        .chain(&options.assumptions)
        .map(PathBuf::as_path)
        .collect();
    let page =
        options.html.as_deref().map(|path| OutputFile::prepare(path, options.force, &inputs)).transpose()?;
    let mut subject = WorthSubject {
        assumptions: options.assumptions.as_deref().map(assumptions).transpose()?.unwrap_or_default(),
        ..WorthSubject::default()
    };
    for path in &options.before {
        match open(path)? {
            Opened::Document(text) => subject.before.push(document(path, &text, When::Before)?),
            Opened::Listing(list) => subject.worst_before = find(path, list, Wanted::Worst)?,
        }
    }
    for path in &options.after {
        match (open(path)?, &subject.worst_before) {
            (Opened::Document(text), _) => subject.after.push(document(path, &text, When::After)?),
            (Opened::Listing(list), Some(worst)) => {
                subject.worst_after = find(path, list, Wanted::Same(worst))?;
            }
            // Without a file to look for there is nothing to say of it.
            (Opened::Listing(_), None) => {}
        }
    }
    let document = worth_document(&subject);
    if document.is_empty() {
        return Err(Error::refused("the documents have no figure in common").hint(
            "give two documents of one kind, such as two of 'leandisk analyze --json', or one of a change on both sides",
        ));
    }
    if let Some(file) = page {
        let last = options.after.last().map_or(Path::new("."), PathBuf::as_path);
        file.write_page(&worth_page(&document, &subject), last, observer)?;
    }
    Ok(document)
}

enum Opened {
    Document(String),
    Listing(BufReader<File>),
}

fn open(path: &Path) -> Result<Opened> {
    let failed = |error| Error::io("read", error).path(path.display());
    let mut file = File::open(path).map_err(failed)?;
    let mut line = String::new();
    // What is no text is no list.
    let read = BufReader::new(&file).take(DOCUMENT_BYTES_MAX).read_line(&mut line);
    if read.is_ok() && is_listing(&line) {
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        return Ok(Opened::Listing(BufReader::new(file)));
    }
    text(path, DOCUMENT_BYTES_MAX).map(Opened::Document)
}

fn text(path: &Path, bytes_max: u64) -> Result<String> {
    let failed = |error| Error::io("read", error).path(path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if read as u64 > bytes_max {
        return Err(Error::corrupt(CorruptInput::TooLarge).path(path.display()));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn document(path: &Path, text: &str, when: When) -> Result<WorthInput> {
    let name = path.to_string_lossy();
    WorthInput::from_json(&name, text, when).map_err(|error| error.path(path.display()))
}

fn find(path: &Path, list: BufReader<File>, wanted: Wanted<'_>) -> Result<Option<ListedFile>> {
    ListedFile::find(list, wanted).map_err(|error| error.path(path.display()))
}

fn assumptions(path: &Path) -> Result<Assumptions> {
    let text = text(path, ASSUMPTIONS_BYTES_MAX)?;
    Assumptions::from_toml(&text).map_err(|error| error.path(path.display()))
}
