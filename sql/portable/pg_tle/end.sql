$_pgtle_$);
