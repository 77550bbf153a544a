SELECT count(*) FROM jobs WHERE state <> 'done'
