//! Table of the policies and wrappers of one kind, by name. Turns specs into factories.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::spec::{self, Part};
use super::{ParameterInfo, Parameters, PolicyError, PolicyKind, RegisterError, UnknownPolicy};

/// Creates a factory with this text as its name.
pub(super) type MakeFactory<F> = Box<dyn FnOnce(&str) -> Arc<F>>;
/// Wraps a factory. The result has this text as its name.
pub(super) type WrapFactory<F> = Box<dyn FnOnce(Arc<F>, &str) -> Arc<F>>;
type Read<T> = Arc<dyn Fn(&mut Parameters<'_>) -> T + Send + Sync>;

enum Entry<F: ?Sized> {
    /// Policy without parameters.
    Plain(Arc<F>),
    /// Policy that reads parameters first.
    Parametric(Read<MakeFactory<F>>),
}

impl<F: ?Sized> Clone for Entry<F> {
    fn clone(&self) -> Self {
        match self {
            Entry::Plain(factory) => Entry::Plain(Arc::clone(factory)),
            Entry::Parametric(read) => Entry::Parametric(Arc::clone(read)),
        }
    }
}

/// Factories of one kind, by name.
pub(super) struct Table<F: ?Sized> {
    kind: PolicyKind,
    wrapper_kind: Option<PolicyKind>,
    by_name: BTreeMap<String, Entry<F>>,
    wrappers: BTreeMap<String, Read<WrapFactory<F>>>,
}

// Not derived, because that would require `F: Clone`.
impl<F: ?Sized> Clone for Table<F> {
    fn clone(&self) -> Self {
        let Table { kind, wrapper_kind, by_name, wrappers } = self;
        let (by_name, wrappers) = (by_name.clone(), wrappers.clone());
        Table { kind: *kind, wrapper_kind: *wrapper_kind, by_name, wrappers }
    }
}

impl<F: ?Sized> fmt::Debug for Table<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, wrappers) = (self.names(), self.wrapper_names());
        f.debug_struct("Table").field("names", &names).field("wrappers", &wrappers).finish()
    }
}

fn check_name(kind: PolicyKind, name: &str, taken: bool) -> Result<(), RegisterError> {
    let good = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let name = || name.to_owned();
    match (good, taken) {
        (false, _) => Err(RegisterError::BadName { kind, name: name() }),
        (true, true) => Err(RegisterError::NameTaken { kind, name: name() }),
        (true, false) => Ok(()),
    }
}

impl<F: ?Sized> Table<F> {
    pub(super) const fn new(kind: PolicyKind, wrapper_kind: Option<PolicyKind>) -> Self {
        Table { kind, wrapper_kind, by_name: BTreeMap::new(), wrappers: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, name: &str, factory: Arc<F>) -> Result<(), RegisterError> {
        check_name(self.kind, name, self.by_name.contains_key(name))?;
        self.by_name.insert(name.to_owned(), Entry::Plain(factory));
        Ok(())
    }

    pub(super) fn insert_parametric(
        &mut self,
        name: &str,
        read: impl Fn(&mut Parameters<'_>) -> MakeFactory<F> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        check_name(self.kind, name, self.by_name.contains_key(name))?;
        self.by_name.insert(name.to_owned(), Entry::Parametric(Arc::new(read)));
        Ok(())
    }

    pub(super) fn insert_wrapper(
        &mut self,
        name: &str,
        read: impl Fn(&mut Parameters<'_>) -> WrapFactory<F> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let kind = self.wrapper_kind.unwrap_or(self.kind);
        check_name(kind, name, self.wrappers.contains_key(name))?;
        self.wrappers.insert(name.to_owned(), Arc::new(read));
        Ok(())
    }

    /// All names, sorted.
    pub(super) fn names(&self) -> Vec<&str> {
        self.by_name.keys().map(String::as_str).collect()
    }

    /// The names of all wrappers, sorted.
    pub(super) fn wrapper_names(&self) -> Vec<&str> {
        self.wrappers.keys().map(String::as_str).collect()
    }

    /// Returns the factory that a spec describes.
    pub(super) fn get(&self, text: &str) -> Result<Arc<F>, PolicyError> {
        let parts = spec::parse(self.kind, text)?;
        let mut end = 0;
        let mut made: Option<Arc<F>> = None;
        for part in &parts {
            // Name of the factory so far: the text up to the next `+`.
            end = text[end..].find('+').map_or(text.len(), |at| end + at);
            let so_far = &text[..end];
            end = text.len().min(end + 1);
            made = Some(match made.take() {
                None => self.make(part, so_far)?,
                Some(inner) => self.wrap(part, inner, so_far)?,
            });
        }
        made.ok_or_else(|| unknown_policy_error(self.kind, text, self.names()))
    }

    fn make(&self, part: &Part<'_>, text: &str) -> Result<Arc<F>, PolicyError> {
        let mut parameters = Parameters::new(self.kind, part.name, &part.given);
        let factory = match self.by_name.get(part.name) {
            None => return Err(unknown_policy_error(self.kind, part.name, self.names())),
            Some(Entry::Plain(factory)) => Arc::clone(factory),
            Some(Entry::Parametric(read)) => read(&mut parameters)(text),
        };
        parameters.finish()?;
        Ok(factory)
    }

    fn wrap(&self, part: &Part<'_>, inner: Arc<F>, text: &str) -> Result<Arc<F>, PolicyError> {
        let Some(kind) = self.wrapper_kind else {
            let problem = "policies of this kind cannot be wrapped with `+`";
            let (kind, text) = (self.kind, text.to_owned());
            return Err(PolicyError::Syntax { kind, text, problem });
        };
        let Some(read) = self.wrappers.get(part.name) else {
            return Err(unknown_policy_error(kind, part.name, self.wrapper_names()));
        };
        let mut parameters = Parameters::new(kind, part.name, &part.given);
        let wrap = read(&mut parameters);
        parameters.finish()?;
        Ok(wrap(inner, text))
    }

    /// Parameters of a policy; `None` if there is no such policy.
    pub(super) fn parameters(&self, name: &str) -> Option<Vec<ParameterInfo>> {
        let mut parameters = Parameters::new(self.kind, name, &[]);
        if let Entry::Parametric(read) = self.by_name.get(name)? {
            drop(read(&mut parameters));
        }
        parameters.finish().ok()
    }

    /// Parameters of a wrapper; `None` if there is no such wrapper.
    pub(super) fn wrapper_parameters(&self, name: &str) -> Option<Vec<ParameterInfo>> {
        let mut parameters = Parameters::new(self.kind, name, &[]);
        drop(self.wrappers.get(name)?(&mut parameters));
        parameters.finish().ok()
    }
}

fn unknown_policy_error(kind: PolicyKind, name: &str, known: Vec<&str>) -> PolicyError {
    let known = known.into_iter().map(str::to_owned).collect();
    UnknownPolicy { kind, name: name.to_owned(), known }.into()
}
