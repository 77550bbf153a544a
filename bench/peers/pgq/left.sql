SELECT pending_events FROM pgq.get_consumer_info('bench', 'worker')
