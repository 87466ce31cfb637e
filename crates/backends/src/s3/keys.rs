//! Who asks: access keys, as the environment says them.

use block::{Error, Result};

use crate::secret::Secret;

/// An access key with its secret, and the token of a session that it may belong to.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: Secret,
    pub(crate) session: Option<Secret>,
}

impl Keys {
    pub(crate) fn find(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let needed = |name: &str| {
            variable(name).ok_or_else(|| {
                Error::invalid(format!("{name} is missing"))
                    .hint("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN of a session, are the keys to the bucket")
            })
        };
        Ok(Self {
            id: needed("AWS_ACCESS_KEY_ID")?,
            secret: Secret(needed("AWS_SECRET_ACCESS_KEY")?),
            session: variable("AWS_SESSION_TOKEN").map(Secret),
        })
    }
}
