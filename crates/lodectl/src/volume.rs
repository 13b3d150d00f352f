//! `lodectl volume …`.

mod limits;
mod view;

use anyhow::{Result, bail};
use lode_api::Client;
use lode_api::client::{ExtentQuery, NewVolume, Shrink, VolumeName};

use crate::cli::{VolumeCommand, VolumeOptions};
use crate::output::Output;
use crate::size::Size;
use crate::{export, import, raw};
pub(crate) use limits::shown as limits_shown;
pub(crate) use view::durability_name;
use view::{DeletedView, ExtentView, VolumeView};

pub(crate) async fn run(client: &Client, output: &Output, command: VolumeCommand) -> Result<()> {
    let volume = match command {
        VolumeCommand::Create {
            target,
            size,
            options,
        } => {
            let volume = new_volume(target.volume(), size.0, options)?;
            client.create_volume(&volume).await?
        }
        VolumeCommand::Show { target } => client.volume(&target.volume()).await?,
        VolumeCommand::Resize {
            target,
            size,
            allow_shrink,
        } => {
            let shrink = if allow_shrink {
                Shrink::Allowed
            } else {
                Shrink::Refused
            };
            let name = target.volume();
            client.resize_volume(&name, size.0, shrink).await?
        }
        VolumeCommand::Limit { target, limits } => {
            let change = limits::change(limits)?;
            client.limit_volume(&target.volume(), change).await?
        }
        VolumeCommand::List { pool } => return list(client, output, &pool).await,
        VolumeCommand::Delete { target } => {
            let name = target.volume();
            client.delete_volume(&name).await?;
            let deleted = DeletedView {
                deleted: name.volume,
            };
            return output.show(&deleted, DeletedView::line);
        }
        VolumeCommand::Extents {
            target,
            offset,
            length,
        } => {
            let query = ExtentQuery {
                name: target.volume(),
                offset_bytes: offset.0,
                length_bytes: length.map(|Size(length)| length),
            };
            return extents(client, output, &query).await;
        }
        VolumeCommand::Import(arguments) => return import::run(client, output, &arguments).await,
        VolumeCommand::Export(arguments) => return export::run(client, output, &arguments).await,
        VolumeCommand::Read(arguments) => return raw::read(client, &arguments).await,
        VolumeCommand::Write(arguments) => return raw::write(client, output, &arguments).await,
    };
    output.show(&VolumeView::from(volume), VolumeView::lines)
}

/// The volume to be made, with a block size that fits the wire.
pub(crate) fn new_volume(
    name: VolumeName,
    size_bytes: u64,
    options: VolumeOptions,
) -> Result<NewVolume> {
    let Ok(block_size_bytes) = u32::try_from(options.block_size.0) else {
        bail!("a block size is 512 or 4096 bytes");
    };
    Ok(NewVolume {
        name,
        size_bytes,
        block_size_bytes,
        durability: options.durability.into(),
        limits: limits::new(options.limits)?,
    })
}

async fn list(client: &Client, output: &Output, pool: &str) -> Result<()> {
    let volumes = client.list_volumes(pool).await?;
    let views: Vec<_> = volumes.into_iter().map(VolumeView::from).collect();
    output.show(&views, |views| view::list(views))
}

async fn extents(client: &Client, output: &Output, query: &ExtentQuery) -> Result<()> {
    let mut views = Vec::new();
    let mut token = String::new();
    loop {
        let page = client.list_extents_page(query, 0, &token).await?;
        views.extend(page.extents.into_iter().map(ExtentView::from));
        if page.next_page_token.is_empty() {
            return output.show(&views, |views| view::extents(views));
        }
        token = page.next_page_token;
    }
}
