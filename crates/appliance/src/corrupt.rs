//! What an appliance that is broken says, as values.

/// How an appliance contradicts itself or its format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A header of the archive whose checksum is wrong.
    #[error("tar header: checksum is {found}, expected {expected}")]
    HeaderChecksum {
        /// In the header.
        found: u64,
        /// Of the header.
        expected: u64,
    },
    /// A number of a header.
    #[error("tar header: the {field} is no number")]
    HeaderNumber {
        /// Which.
        field: &'static str,
    },
    /// A member that ends past the archive.
    #[error("member '{name}' has {len_bytes} bytes, which is more than is left of the archive")]
    MemberPastEnd {
        /// Its name.
        name: String,
        /// Its length.
        len_bytes: u64,
    },
    /// A name that could lead elsewhere.
    #[error("member '{name}' {why}")]
    MemberName {
        /// As it is.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two members of one name.
    #[error("two members are called '{name}'")]
    MemberTwice {
        /// The name.
        name: String,
    },
    /// More headers than any appliance has.
    #[error("the archive has more than {max} members")]
    TooManyMembers {
        /// The limit.
        max: usize,
    },
    /// An extended header that is none.
    #[error("tar extended header: {why}")]
    ExtendedHeader {
        /// What is wrong with it.
        why: &'static str,
    },
    /// An archive without a description.
    #[error("the archive holds no .ovf descriptor")]
    NoDescriptor,
    /// An archive with several.
    #[error("the archive holds several .ovf descriptors: '{first}' and '{second}'")]
    SeveralDescriptors {
        /// One.
        first: String,
        /// Another.
        second: String,
    },
    /// A text that is longer than any description.
    #[error("'{name}' has {len_bytes} bytes, more than the {max} that are read of a description")]
    TextTooLong {
        /// Which.
        name: String,
        /// How long it is.
        len_bytes: u64,
        /// The limit.
        max: u64,
    },
    /// XML that is none, or is out of bounds.
    #[error("XML: {why}")]
    Xml {
        /// What is wrong.
        why: String,
    },
    /// XML of something else.
    #[error("XML whose first element is '{found}', expected '{expected}'")]
    Root {
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An element without an attribute that it must have, or with a wrong one.
    #[error("{element} of the description: '{attribute}' is {found}")]
    Attribute {
        /// Which element.
        element: String,
        /// Which attribute.
        attribute: &'static str,
        /// What it is.
        found: String,
    },
    /// A disk whose file the description does not list.
    #[error("disk '{disk}' has the file reference '{file}', which the description does not list")]
    FileReference {
        /// The disk.
        disk: String,
        /// The reference.
        file: String,
    },
    /// A file that is not in the archive.
    #[error("the description names '{name}', which is no member of the archive")]
    NoSuchMember {
        /// The name.
        name: String,
    },
    /// A file of another length.
    #[error("'{name}' has {found} bytes, and {stated} by the description")]
    FileLength {
        /// Which.
        name: String,
        /// What it has.
        found: u64,
        /// What the description says.
        stated: u64,
    },
    /// A chunk of another length than all but the last have.
    #[error("'{name}' has {found} bytes, and is a chunk of {expected}")]
    ChunkLength {
        /// Which.
        name: String,
        /// What it has.
        found: u64,
        /// What it should have.
        expected: u64,
    },
    /// More chunks than a file has.
    #[error("'{name}' lies in {count} chunks, more than {max}")]
    TooManyChunks {
        /// The file.
        name: String,
        /// How many.
        count: u64,
        /// The limit.
        max: u64,
    },
    /// A compressed file that is none.
    #[error("gzip: {why}")]
    Gzip {
        /// What is wrong with it.
        why: String,
    },
    /// A disk of another size.
    #[error("the disk has {found} bytes, and {stated} by the description")]
    Capacity {
        /// What it has.
        found: u64,
        /// What the description says.
        stated: u64,
    },
    /// A line of a manifest.
    #[error("manifest: line {line} is no digest of a file")]
    ManifestLine {
        /// Which, from 1.
        line: usize,
    },
    /// A file with two digests of one kind.
    #[error("manifest: '{name}' is named twice")]
    ManifestTwice {
        /// The file.
        name: String,
    },
    /// A file of the description that the manifest leaves out.
    #[error("manifest: it has no digest of '{name}'")]
    NotInManifest {
        /// The file.
        name: String,
    },
    /// A file that is not what it was.
    #[error("'{name}' is not what the manifest says: its {algorithm} is {found}, expected {expected}")]
    Digest {
        /// The file.
        name: String,
        /// The algorithm.
        algorithm: &'static str,
        /// Of the file.
        found: String,
        /// By the manifest.
        expected: String,
    },
    /// A line of a configuration of VMware's.
    #[error("line {line} of the .vmx file is no 'key = \"value\"'")]
    VmxLine {
        /// Which, from 1.
        line: usize,
    },
    /// More disks than any machine has.
    #[error("the description has more than {max} disks")]
    TooManyDisks {
        /// The limit.
        max: usize,
    },
}
