//! The block `steering`.

use lnet_model::pattern;
use lnet_model::request::Change;
use lnet_model::steering::{PolicyField, PolicyFields, PolicyName, PortalPolicy, SteeringPolicy};

use super::Reader;
use super::values::get;
use crate::document::Mode;
use crate::document::tree::{MapEntry, Marked, Position, Value};

/// Keys of every policy; the fields of some come to them.
const KEYS: [&str; 3] = ["portal", "policy", "seq_no"];

impl Reader {
    pub(super) fn steering(&mut self, position: Position, entries: &[MapEntry]) {
        if let Some(policy) = self.portal_policy(position, entries)
            && self.is_new(position, format_args!("portal {}", policy.portal), &policy.policy)
        {
            self.change(position, "steering", Change::SetSteering(policy));
        }
    }

    fn portal_policy(&mut self, position: Position, entries: &[MapEntry]) -> Option<PortalPolicy> {
        self.known_keys(entries, "steering", &[KEYS.as_slice(), PolicyField::NAMES].concat());
        self.needed(position, entries, "portal", "a steering policy")?;
        let policy = self.needed(position, entries, "policy", "a steering policy")?;
        let portal = self.integer_of(entries, "portal", 0..=63);
        let name: PolicyName = self.word(policy, "policy", PolicyName::NAMES)?.parse().ok()?;
        let mut number = |field: PolicyField| {
            (field.policy() == name).then(|| self.integer_of(entries, field.name(), 0..=field.max()))?
        };
        let (shard, shift) = (number(PolicyField::Shard), number(PolicyField::Shift));
        let bits = number(PolicyField::Bits);
        let table = get(entries, "table").filter(|_| PolicyField::Table.policy() == name);
        let table = table.and_then(|value| self.table(value));
        let policy = match name.with(PolicyFields { shard, shift, bits, table }) {
            Ok(policy) => policy,
            Err(field) => {
                if get(entries, field.name()).is_none() {
                    self.error(position, format!("this policy needs '{field}'"));
                }
                return None;
            }
        };
        self.check_keys(entries, name);
        let policy = PortalPolicy { portal: portal?, policy };
        if let Err(error) = policy.check() {
            self.error(position, error.to_string());
            return None;
        }
        match self.mode {
            Mode::Delete => Some(PortalPolicy { policy: SteeringPolicy::DEFAULT, ..policy }),
            _ => Some(policy),
        }
    }

    /// Shards in the order of their values: unlike CPTs they repeat.
    fn table(&mut self, value: &Marked) -> Option<Vec<u8>> {
        let expected = "shards such as [0,1,0,1]";
        if let Value::Sequence(items) = &value.value {
            let shards = items.iter().map(|item| self.integer(item, "table", 0..=PolicyField::Table.max()));
            return shards.map(|shard| u8::try_from(shard?).ok()).collect();
        }
        self.pattern(value, "table", expected, |text| {
            pattern::shards(text).ok_or_else(|| pattern::invalid(text, expected))
        })
    }

    /// Reports keys of other policies.
    fn check_keys(&mut self, entries: &[MapEntry], policy: PolicyName) {
        for MapEntry { position, key, .. } in entries {
            let of = key.parse().map_or(policy, PolicyField::policy);
            if policy != of {
                self.error(*position, format!("'{key}' is for the policy '{of}', not for '{policy}'"));
            }
        }
    }
}
