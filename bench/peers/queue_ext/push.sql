SELECT queue.push('bench', :payload);
