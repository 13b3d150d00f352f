//! One page of volumes, over one pool or all.

use lode_api::limits::PAGE_SIZE_MAX;
use lode_api::v1::{ErrorReason, ListVolumesRequest, ListVolumesResponse, Volume};
use lode_engine::{ControlError, ControlRequest};
use lode_extent::PoolState;

use crate::failure::Failure;
use crate::open;
use crate::volume::describe;

/// Where a page starts: after this volume of this pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    pool: String,
    volume: String,
}

/// The page that `request` asks for.
pub(super) async fn page(request: &ListVolumesRequest) -> Result<ListVolumesResponse, Failure> {
    let limit = page_size(request.page_size);
    let start = Position::parse(&request.page_token, &request.pool)?;
    let mut volumes = Vec::new();
    for pool in pools(&request.pool).await? {
        let after = match &start {
            Some(start) if pool < start.pool => continue,
            Some(start) if pool == start.pool => Some(start.volume.clone()),
            _ => None,
        };
        // One more than fits tells whether there is another page.
        let wanted = limit + 1 - volumes.len();
        volumes.extend(volumes_of(&pool, after, wanted).await?);
        if volumes.len() > limit {
            break;
        }
    }
    let is_last = volumes.len() <= limit;
    volumes.truncate(limit);
    let next_page_token = match volumes.last() {
        Some(last) if !is_last => Position::after(last).to_token(),
        _ => String::new(),
    };
    Ok(ListVolumesResponse {
        volumes,
        next_page_token,
    })
}

/// How many items a page has at most.
pub(super) fn page_size(asked: u32) -> usize {
    let size = match asked {
        0 => PAGE_SIZE_DEFAULT,
        size => size.min(PAGE_SIZE_MAX),
    };
    usize::try_from(size).expect("at most 1000")
}

/// The names of the pools to list, in order. A pool that does not serve fails a listing of its
/// own, and is left out of one over all pools, so that it does not hide the others.
async fn pools(name: &str) -> Result<Vec<String>, Failure> {
    let pools = open::pools().await?.into_iter();
    if name.is_empty() {
        let serving = pools.filter(|pool| pool.state == PoolState::Ready);
        return Ok(serving.map(|pool| pool.name).collect());
    }
    let names = pools.map(|pool| pool.name);
    let found: Vec<_> = names.filter(|pool| pool == name).collect();
    if found.is_empty() {
        let name = name.to_owned();
        return Err(ControlError::UnknownPool { name }.into());
    }
    Ok(found)
}

async fn volumes_of(
    pool: &str,
    after: Option<String>,
    limit: usize,
) -> Result<Vec<Volume>, Failure> {
    let listed = open::control(ControlRequest::ListVolumes {
        pool: pool.to_owned(),
        after,
        limit,
    });
    let volumes = open::as_volumes(listed.await?)?;
    Ok(volumes
        .into_iter()
        .map(|info| describe(pool, info))
        .collect())
}

impl Position {
    fn after(volume: &Volume) -> Self {
        Self {
            pool: volume.pool.clone(),
            volume: volume.name.clone(),
        }
    }

    /// Names hold no control character, so that one can stand between them.
    fn to_token(&self) -> String {
        format!("{}{SEPARATOR}{}", self.pool, self.volume)
    }

    fn parse(token: &str, pool: &str) -> Result<Option<Self>, Failure> {
        if token.is_empty() {
            return Ok(None);
        }
        let position = token.split_once(SEPARATOR).map(|(pool, volume)| Self {
            pool: pool.to_owned(),
            volume: volume.to_owned(),
        });
        match position {
            Some(position)
                if (pool.is_empty() || position.pool == pool)
                    && open::check_name("page_token", &position.pool).is_ok()
                    && open::check_name("page_token", &position.volume).is_ok() =>
            {
                Ok(Some(position))
            }
            _ => Err(invalid_page_token()),
        }
    }
}

/// The page token was not given out by this call.
pub(super) fn invalid_page_token() -> Failure {
    let message = "the page token did not come from an earlier answer of this call";
    Failure::new(ErrorReason::InvalidPageToken, message).with_field("page_token")
}

const PAGE_SIZE_DEFAULT: u32 = 100;
const SEPARATOR: char = '\u{1f}';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_the_position_it_was_made_from() {
        let position = Position {
            pool: "tank".into(),
            volume: "a/b é".into(),
        };
        let token = position.to_token();
        assert_eq!(Position::parse(&token, ""), Ok(Some(position.clone())));
        assert_eq!(Position::parse(&token, "tank"), Ok(Some(position)));
        assert_eq!(Position::parse("", "tank"), Ok(None));
    }

    #[test]
    fn a_foreign_token_is_refused() {
        for (token, pool) in [
            ("nonsense", ""),
            ("tank\u{1f}v", "other"),
            ("\u{1f}v", ""),
            ("tank\u{1f}", ""),
            ("a\u{1f}b\u{1f}c", ""),
        ] {
            let failure = Position::parse(token, pool).expect_err("no token");
            assert_eq!(failure.reason(), ErrorReason::InvalidPageToken, "{token:?}");
        }
    }

    #[test]
    fn a_page_size_is_bounded() {
        assert_eq!(page_size(0), 100);
        assert_eq!(page_size(1), 1);
        assert_eq!(page_size(1000), 1000);
        assert_eq!(page_size(1001), 1000);
    }
}
