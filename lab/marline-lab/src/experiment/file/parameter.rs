//! Parameter of a variant's policy in a sweep: the key `"variant.NAME.scheduler.KEY"`.

use anyhow::{Context, ensure};
use marline::algos::PolicyKind;
use toml::{Table, Value};

use crate::policies;

/// Policy keys of a variant, with their kinds, the kinds of their wrappers, and their defaults.
const POLICIES: [(&str, PolicyKind, Option<PolicyKind>, &str); 4] = [
    ("scheduler", PolicyKind::Scheduler, Some(PolicyKind::SchedulerWrapper), "auto"),
    ("path_manager", PolicyKind::PathManager, None, "full-mesh"),
    ("congestion", PolicyKind::Congestion, Some(PolicyKind::CongestionWrapper), "cubic-westwood"),
    ("recovery", PolicyKind::Recovery, None, "rack-tlp"),
];

/// Returns true if this key of a variant is a policy.
pub(super) fn is_policy(key: &str) -> bool {
    POLICIES.iter().any(|(name, ..)| *name == key)
}

/// Sets a parameter of a variant's policy: `[KEY]` in the part of its spec that has the key, `[PART, KEY]` in the part
/// with this name. The resulting spec is checked later, when all keys are set.
pub(super) fn set(
    variant: &mut Table,
    policy: &str,
    words: &[&str],
    value: &str,
) -> anyhow::Result<()> {
    let entry = POLICIES.iter().find(|(name, ..)| *name == policy);
    let (_, kind, wrapper, shipped) =
        *entry.with_context(|| format!("unknown policy `{policy}`"))?;
    let spec = variant.get(policy).and_then(Value::as_str).unwrap_or(shipped).to_owned();
    let mut parts: Vec<String> = spec.split('+').map(str::to_owned).collect();
    let name = |part: &str| part.split(',').next().unwrap_or_default().to_owned();
    let (at, key) = match *words {
        [key] => {
            let registry = policies::registry();
            let knows = |(number, part): (usize, &String)| {
                let kind = if number == 0 { Some(kind) } else { wrapper };
                let known = kind.and_then(|kind| registry.parameters(kind, &name(part)));
                known.is_some_and(|known| known.iter().any(|parameter| parameter.key == key))
            };
            // If no part has the key, the policy's error lists its keys.
            (parts.iter().enumerate().position(knows).unwrap_or(0), key)
        }
        [wanted, key] => {
            let at = parts.iter().position(|part| name(part) == wanted);
            let what = || format!("`{policy} = \"{spec}\"` has no part `{wanted}`");
            (at.with_context(what)?, key)
        }
        _ => anyhow::bail!("expected `{policy}.KEY` or `{policy}.PART.KEY`"),
    };
    ensure!(!key.is_empty() && !value.is_empty(), "`{policy}.{key}`: expected a key and a value");
    let given = format!("{key}=");
    let kept: Vec<&str> = parts[at].split(',').filter(|word| !word.starts_with(&given)).collect();
    parts[at] = format!("{},{given}{value}", kept.join(","));
    variant.insert(policy.to_owned(), Value::String(parts.join("+")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_in_the_part_that_has_them() {
        let set_in = |spec: Option<&str>, words: &[&str], value: &str| {
            let mut variant = Table::new();
            if let Some(spec) = spec {
                variant.insert("scheduler".to_owned(), Value::String(spec.to_owned()));
            }
            set(&mut variant, "scheduler", words, value).map(|()| variant["scheduler"].to_string())
        };
        let good = |spec, words, value| set_in(spec, words, value).expect("a spec");
        assert_eq!(good(None, &["budget"], "0"), "\"auto,budget=0\"");
        assert_eq!(good(Some("ecf,beta=0.1"), &["beta"], "0.5"), "\"ecf,beta=0.5\"");
        let wrapped = good(Some("min-rtt+orp,penalize=paper"), &["penalize"], "off");
        assert_eq!(wrapped, "\"min-rtt+orp,penalize=off\"");
        assert_eq!(
            good(Some("min-rtt+orp"), &["orp", "penalize"], "x"),
            "\"min-rtt+orp,penalize=x\""
        );
        let error = set_in(Some("min-rtt"), &["orp", "penalize"], "x").expect_err("no such part");
        assert_eq!(error.to_string(), "`scheduler = \"min-rtt\"` has no part `orp`");
    }
}
